"""Where the bits of updates go and which tensors they change: what one looks at to choose tau.

Sums only; ratios are made of them where they are shown (p2psgd.ops.compression). Density is per mini-batch,
not per update: a mini-batch whose tensors have several steps makes several updates, and one in which no
weight exceeds its step makes none.

Costs one pass over the payload (`codec.measure`) and a binary search for each tensor, see `Meter`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, UPDATE_HEADER_BYTES

FRAME_BITS: Final = 8 * (PREFIX.size + UPDATE_HEADER_BYTES)  # of each update, before its payload
RECENT_MINI_BATCHES: Final = 100  # the recent sums cover the last 100 to 200 that made updates
SLICES_MAX: Final = 16

Tensors = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(slots=True, eq=False)
class Tally:
    """Sums over some updates of a run of T tensors; bits add up to those of the updates' frames."""

    tensor_indices: NDArray[np.int64]  # (T,)
    tensor_steps: NDArray[np.int64]  # (T,) quanta, of the last update that touched the tensor; 0: none did
    mini_batches: int = 0
    updates: int = 0
    dense_updates: int = 0  # those with a dense payload
    indices: int = 0
    header_bits: int = 0  # frames, update headers, block headers
    remainder_bits: int = 0
    quotient_bits: int = 0
    sign_bits: int = 0
    dense_bits: int = 0
    blocks: int = 0
    sign_coded_blocks: int = 0

    @classmethod
    def empty(cls, tensors: int) -> Tally:
        """The sums over no updates."""
        return cls(np.zeros(tensors, np.int64), np.zeros(tensors, np.int64))

    @property
    def bits(self) -> int:
        """All bits of the updates, frames included."""
        return self.header_bits + self.remainder_bits + self.quotient_bits + self.sign_bits + self.dense_bits

    def add(self, later: Tally) -> None:
        """Add the sums over updates that came after these."""
        self.tensor_indices += later.tensor_indices
        np.copyto(self.tensor_steps, later.tensor_steps, where=later.tensor_steps > 0)
        self.mini_batches += later.mini_batches
        self.updates += later.updates
        self.dense_updates += later.dense_updates
        self.indices += later.indices
        self.header_bits += later.header_bits
        self.remainder_bits += later.remainder_bits
        self.quotient_bits += later.quotient_bits
        self.sign_bits += later.sign_bits
        self.dense_bits += later.dense_bits
        self.blocks += later.blocks
        self.sign_coded_blocks += later.sign_coded_blocks


class Meter:
    """Takes updates of one run apart and adds them to tallies."""

    def __init__(self, tensors: Tensors) -> None:
        sizes = [math.prod(shape) for _, shape in tensors]
        ends = np.cumsum(sizes, dtype=np.int64)
        self.tensors = len(sizes)
        self._weights = int(ends[-1])
        self._firsts = (ends[:-1] << 1).astype(np.uint32)  # the least word of each tensor but the first
        self._places = np.zeros(self.tensors + 1, np.int64)
        self._mini_batches: dict[Origin, int] = {}

    def begin(self, origin: Origin, mini_batches: int) -> None:
        """Its mini-batches count from there on, not from 0."""
        self._mini_batches[origin] = mini_batches

    def count(
        self,
        tally: Tally,
        *,
        origin: Origin,
        mini_batch: int,
        step: int,
        words: NDArray[np.uint32],
        payload: bytes | memoryview,
    ) -> None:
        """Add one update, whose `payload` decodes to `words`, to a tally."""
        measured = codec.measure(payload, len(words), self._weights)
        tally.updates += 1
        tally.dense_updates += measured.blocks == 0
        tally.indices += len(words)
        tally.header_bits += FRAME_BITS + measured.header
        tally.remainder_bits += measured.remainder
        tally.quotient_bits += measured.quotient
        tally.sign_bits += measured.sign
        tally.dense_bits += measured.dense
        tally.blocks += measured.blocks
        tally.sign_coded_blocks += measured.sign_coded_blocks
        before = self._mini_batches.get(origin, 0)
        if mini_batch > before:
            tally.mini_batches += mini_batch - before
            self._mini_batches[origin] = mini_batch
        self._places[1:-1] = words.searchsorted(self._firsts)
        self._places[-1] = len(words)
        counts = self._places[1:] - self._places[:-1]
        tally.tensor_indices += counts
        tally.tensor_steps[counts > 0] = step


class OwnCompression:
    """A node's own updates: all of them, and the recent ones."""

    def __init__(self, tensors: Tensors, me: Origin, *, mini_batches: int = 0) -> None:
        """`mini_batches`: so many were made by former lives."""
        self._meter = Meter(tensors)
        self._meter.begin(me, mini_batches)
        self._me = me
        self._mini_batch = 0  # of the last update
        self._mini_batches_made = 0  # of the current sums, without those that made no update
        self._older, self._previous, self._current = (Tally.empty(self._meter.tensors) for _ in range(3))

    def count(self, *, mini_batch: int, step: int, words: NDArray[np.uint32], payload: bytes) -> None:
        """Take in one more update."""
        if mini_batch != self._mini_batch:
            if self._mini_batches_made == RECENT_MINI_BATCHES:
                self._older.add(self._previous)
                self._previous, self._current = self._current, Tally.empty(self._meter.tensors)
                self._mini_batches_made = 0
            self._mini_batch = mini_batch
            self._mini_batches_made += 1
        self._meter.count(
            self._current, origin=self._me, mini_batch=mini_batch, step=step, words=words, payload=payload
        )

    def total(self) -> Tally:
        """The sums over all updates."""
        return _sum((self._older, self._previous, self._current), self._meter.tensors)

    def recent(self) -> Tally:
        """The sums over the last 100 to 200 mini-batches that made updates."""
        return _sum((self._previous, self._current), self._meter.tensors)


class SlicedCompression:
    """A whole run in at most 16 slices of equally many updates (the last has what is left), in one pass.

    When there are more, neighbours are joined: memory stays bounded however long the run is.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.slices: list[Tally] = []
        self._meter = Meter(tensors)
        self._updates_of_slice = 1

    def count(
        self, *, origin: Origin, mini_batch: int, step: int, words: NDArray[np.uint32], payload: memoryview
    ) -> None:
        """Take in the next update of the run."""
        if not self.slices or self.slices[-1].updates == self._updates_of_slice:
            if len(self.slices) == SLICES_MAX:
                self._join_neighbours()
            self.slices.append(Tally.empty(self._meter.tensors))
        self._meter.count(
            self.slices[-1], origin=origin, mini_batch=mini_batch, step=step, words=words, payload=payload
        )

    def total(self) -> Tally:
        """The sums over the whole run."""
        return _sum(self.slices, self._meter.tensors)

    def _join_neighbours(self) -> None:
        for earlier, later in zip(self.slices[::2], self.slices[1::2], strict=True):
            earlier.add(later)
        self.slices = self.slices[::2]
        self._updates_of_slice *= 2


def _sum(tallies: Sequence[Tally], tensors: int) -> Tally:
    total = Tally.empty(tensors)
    for tally in tallies:
        total.add(tally)
    return total
