"""MessagePack maps from untrusted bytes: no key twice, no extension types, bounded arrays."""

from __future__ import annotations

from typing import Any, Final

import msgpack

MAP_KEYS_MAX: Final = 256


def unpack_map(data: bytes | bytearray, *, array_max: int, lists: bool = False) -> dict[str, Any]:
    """The map that `data` is, with text keys; arrays in it have at most `array_max` elements and are tuples
    unless `lists`.

    ValueError with a few words if it is not exactly one such map.
    """
    try:
        fields = msgpack.unpackb(
            data,
            use_list=lists,
            object_pairs_hook=_unique_keys,
            ext_hook=_refuse_extension,
            strict_map_key=True,
            max_array_len=array_max,
            max_map_len=MAP_KEYS_MAX,
            max_ext_len=0,
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


def _unique_keys(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    if not all(isinstance(key, str) for key in fields):
        raise ValueError("a key is not text")
    return fields


def _refuse_extension(code: int, _: bytes) -> Any:
    raise ValueError(f"extension type {code}")
