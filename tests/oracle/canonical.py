"""Values as text that names no class and no field.

A dataclass, a model and a tuple with the same values give the same text. Sets and mappings are sorted by the
text of their members. Long bytes and arrays are shown by their beginning and a hash.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

SHOWN_BYTES: Final = 48


def hash_of(data: bytes | memoryview, *, size: int = 12) -> str:
    """Return a short hash of bytes, as hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def text_of(value: object) -> str:
    """Return a value as text; TypeError if there is no text that is the same in every process."""
    simple = _SIMPLE.get(type(value))
    return _text_of_others(value) if simple is None else simple(value)


def _text_of_others(value: object) -> str:  # noqa: PLR0911 (one case for each kind of value)
    match value:
        case enum.Enum():
            return text_of(value.value)
        case str():
            return json.dumps(value)
        case int():
            return repr(int(value))
        case bytearray() | memoryview():
            return _text_of_bytes(bytes(value))
        case np.ndarray():
            return f"{value.dtype.str}{value.shape} {_text_of_bytes(np.ascontiguousarray(value).tobytes())}"
        case np.generic():
            return text_of(value.item())
        case Mapping():
            return _joined(sorted(f"{text_of(key)}: {text_of(each)}" for key, each in value.items()))
        case Set():
            return _joined(sorted(map(text_of, value)))
        case _:
            return _joined(map(text_of, _fields_of(value)))


def _fields_of(value: object) -> Iterable[object]:
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, BaseModel):
        return [each for _, each in value]
    if isinstance(value, Iterable):
        return value
    raise TypeError(f"{type(value).__name__} has no text that is the same in every process")


def _joined(texts: Iterable[str]) -> str:
    return f"({', '.join(texts)})"


@lru_cache(maxsize=1 << 12)  # the same frame goes to several peers
def _text_of_bytes(data: bytes) -> str:
    if len(data) <= SHOWN_BYTES:
        return data.hex()
    return f"{data[:SHOWN_BYTES].hex()}...{len(data)} bytes {hash_of(data)}"


_SIMPLE: Final[dict[type, Callable[[Any], str]]] = {
    type(None): repr,
    bool: repr,
    int: repr,
    float: repr,
    str: json.dumps,
    bytes: _text_of_bytes,
}
