"""MessagePack maps from untrusted bytes: no key twice, no extension types, bounded arrays and maps."""

from __future__ import annotations

from typing import Any, Final

import msgpack

MAP_KEYS_MAX: Final = 256

Pairs = list[tuple[Any, Any]]


def unpack_map(data: bytes | bytearray, *, array_max: int, lists: bool = False) -> dict[str, Any]:
    """The map that `data` is, with text keys; arrays in it have at most `array_max` elements and are tuples
    unless `lists`.

    ValueError with a few words if it is not exactly one such map.
    """
    hooks = {"use_list": lists, "object_pairs_hook": _unique_keys}
    return _unpack(data, max_array_len=array_max, max_map_len=MAP_KEYS_MAX, **hooks)


def unpack_flat_map(data: bytes | bytearray | memoryview, *, keys_max: int) -> dict[str, Any]:
    """The map that `data` is, with at most `keys_max` text keys, and no array or map in it.

    ValueError as above. Takes less than 64 KiB, and 64 KiB a key, beside what it returns: of maps in maps
    MessagePack opens at most 1,024 before it gives up, and here the first one that ends is the last.
    """
    complete = False

    def only_one(pairs: Pairs) -> dict[str, Any]:
        nonlocal complete
        if complete:
            raise ValueError("a map within a map")
        complete = True
        return _unique_keys(pairs)

    limits = {"max_array_len": 0, "max_map_len": keys_max}
    return _unpack(data, object_pairs_hook=only_one, list_hook=_refuse_array, **limits)


def _unpack(data: bytes | bytearray | memoryview, **options: Any) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(
            data, ext_hook=_refuse_extension, strict_map_key=True, max_ext_len=0, **options
        )
    except (RecursionError, msgpack.exceptions.StackError):
        raise ValueError("nested too deeply") from None
    except msgpack.exceptions.FormatError:
        raise ValueError("a byte that MessagePack does not have") from None
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"{error!s:.100}") from None
    if not isinstance(fields, dict):
        raise ValueError("not a map")
    return fields


def _unique_keys(pairs: Pairs) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    for key in fields:
        if not isinstance(key, str):
            raise ValueError("a key is not text")
    return fields


def _refuse_array(_: list[Any]) -> Any:
    raise ValueError("an array")


def _refuse_extension(code: int, _: bytes) -> Any:
    raise ValueError(f"extension type {code}")
