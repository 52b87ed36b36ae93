"""The digest of the data of an evaluation, by which members whose data differ find out before they compute.

It covers the number of samples and, of what lies in memory, type, shape and a fixed choice of rows, so that
it costs the same for any amount of data, and depends neither on portions nor on who computes what. A sequence
that reads files or a network is not read for it: a node that cannot read some sample is one that others
compute for, and not one whose data differ.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ROWS_MAX: Final = 64  # of each part of the data: in 64 portions one each
NUMBERS_MAX: Final = 1024  # of a row
DIGEST_BYTES: Final = 8
_PLAIN: Final = "biufcSUmM"  # kinds of numbers and texts whose bytes are all that they are


@dataclass(frozen=True, slots=True)
class CountedSamples:
    """A number of samples that a function reads by itself, and the digest of these."""

    samples: int
    digest: bytes


def sampled_rows(samples: int) -> list[int]:
    """Return the rows that a digest covers, spread evenly from the first to the last one."""
    count = min(samples, ROWS_MAX)
    return [(samples - 1) * number // max(1, count - 1) for number in range(count)]


def row_step(numbers: int) -> int:
    """Return which numbers of a row a digest covers: each that is a multiple of this."""
    return max(1, -(-numbers // NUMBERS_MAX))


def digest_data(data: Any) -> bytes:
    """Return the digest of data as of `Link.evaluate`; it raises nothing for any sequence."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in data if isinstance(data, tuple) else (data,):
        for piece in _describe(part):
            digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.digest()


def _describe(part: Any) -> Iterator[bytes]:
    if isinstance(part, int | np.integer):
        yield f"{int(part)} samples".encode()
    elif isinstance(part, CountedSamples):
        yield f"{part.samples} samples".encode()
        yield part.digest
    elif isinstance(part, np.ndarray):
        yield f"{part.dtype.str} {part.shape}".encode()
        for row in sampled_rows(len(part)):
            yield _row_bytes(np.asarray(part[row]))
    else:
        yield f"{len(part)} samples".encode()
        for row in sampled_rows(len(part)) if type(part) is list else ():
            if isinstance(part[row], np.ndarray | np.generic | int | float):
                array = np.asarray(part[row])
                yield f"{array.dtype.str} {array.shape}".encode()
                yield _row_bytes(array)


def _row_bytes(row: NDArray[Any]) -> bytes:
    return row.flat[:: row_step(row.size)].tobytes() if row.dtype.kind in _PLAIN else b""


class DataDigest:
    """The digest of the data of one evaluation after another, computed once for the same arrays."""

    def __init__(self) -> None:
        self._parts: list[weakref.ref[NDArray[Any]]] = []
        self._digest = b""

    def of(self, data: Any) -> bytes:
        """Return the digest of data as of `Link.evaluate`."""
        parts = data if isinstance(data, tuple) else (data,)
        known = len(parts) == len(self._parts)
        if not known or any(own() is not part for own, part in zip(self._parts, parts, strict=True)):
            self._digest = digest_data(data)
            arrays = all(isinstance(part, np.ndarray) for part in parts)
            self._parts = [weakref.ref(part) for part in parts] if arrays else []
        return self._digest
