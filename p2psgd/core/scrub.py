"""The scrub: does memory still hold what was written to it?

The digest is recomputed from the coordinates themselves, slice by slice, and compared with the running one,
which only ever saw the updates. Updates between two slices count for the slices already seen, so the sum at
the end is that of one moment. A round of a dense ring replaces all coordinates: the scrub then goes on with
the old ones, which tell as well whether this memory keeps what is written to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.consistent_copy import words_below
from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow


class Summed(Protocol):
    """Coordinates int32 (P,), and the digest that they should have under the run's `key`."""

    @property
    def coordinates(self) -> NDArray[np.int32]: ...
    @property
    def key(self) -> int: ...
    @property
    def digest(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class _LeftBehind:
    """What was the replica."""

    coordinates: NDArray[np.int32]
    key: int
    digest: int


class Scrub:
    """One round after another over a lattice; make a new one after `Lattice.replace`, or say `leave_behind`
    before it.
    """

    def __init__(self, lattice: Summed) -> None:
        self._lattice = lattice
        self._seen = 0
        self._digest = 0

    def advance(self, count: int) -> bool | None:
        """Look at the next `count` coordinates. None if the round goes on; else it is over, the next one
        begins, and the coordinates have (True) or have not (False) the digest that they should have.
        """
        lattice = self._lattice
        end = min(self._seen + count, len(lattice.coordinates))
        part = codec.digest_coordinates(lattice.coordinates[self._seen : end], lattice.key, self._seen)
        self._digest = (self._digest + part) % 2**64
        self._seen = end
        if end < len(lattice.coordinates):
            return None
        intact = self._digest == lattice.digest
        self._seen = self._digest = 0
        return intact

    def note(self, words: NDArray[np.uint32], step: int) -> None:
        """The lattice was updated, or is about to be before the next `advance`."""
        part = codec.digest_words(words_below(words, self._seen), step, self._lattice.key)
        self._digest = (self._digest + part) % 2**64

    def leave_behind(self, rows: list[FrontierRow], digest: int) -> None:
        """The lattice is about to have other coordinates; those of now, with `digest`, stay as they are until
        this round is over.
        """
        del rows
        if not isinstance(self._lattice, _LeftBehind):
            self._lattice = _LeftBehind(self._lattice.coordinates, self._lattice.key, digest)

    def reads(self, coordinates: NDArray[np.int32]) -> bool:
        """It looks at these."""
        return self._lattice.coordinates is coordinates
