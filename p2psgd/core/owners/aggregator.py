"""The sum of all contributions to an owner's range, and the part of it that is due for an update.

The sums are integers, so the order of contributions does not matter. They wrap at 32 bits, as coordinates do:
far beyond 2^24, where a run has ended. What has not reached its magnitude stays in the second residual
[Strom 2015, section 5] and counts later. The magnitude of each tensor follows from how many indices come in:
about as many go out as one node contributes, however many nodes there are.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.owners.ranges import Range, as_updates
from p2psgd.core.run_spec import RunSpec
from p2psgd.wire import codec

STEPS_PER_OCTAVE: Final = 2  # magnitudes are what came times powers of sqrt(2), so that tensors share updates
GAIN: Final = 0.1  # octaves of magnitude for an octave of too many indices
GAIN_MAX: Final = 0.25
KINDS_MAX: Final = 8  # magnitudes of exact values; of more, one update for each bit is shorter
COARSE: Final = (16, 4)  # times the magnitude: what is that far beyond it goes at once

CAME_MAX: Final = 4096  # contributions that are kept one by one; more, while nothing is published, are not
OUTSIDE_MAX: Final = 2**18  # values outside of the range; members that differ on ranges do so for a moment

Update = tuple[int, NDArray[np.uint32]]  # a magnitude, and words


class Aggregator:
    """The second residual of one owner's range, int32, and what lies outside of the range for a while."""

    def __init__(self, spec: RunSpec) -> None:
        self.range: Range = (0, 0)
        self.residual: NDArray[np.int32] = np.zeros(0, np.int32)
        self._starts = np.cumsum([0, *(math.prod(shape) for _, shape in spec.tensors)])[:-1]
        self._borders = (self._starts << 1).astype(np.uint64)  # in words
        self._floors = np.full(len(self._starts), np.nan)  # log2 of the least that came last, by tensor
        self._levels = np.full(len(self._starts), np.nan)  # log2 of the magnitude, by tensor
        self._came: list[tuple[NDArray[np.uint32], int]] = []  # since the last `take`: words, magnitude
        self._left: NDArray[np.int64] = np.zeros(0, np.int64)  # beyond their magnitude all the same
        self._outside: dict[int, int] = {}  # values of other ranges, by index

    def takes(self, words: NDArray[np.uint32]) -> bool:
        """Return whether there is room for what of these words, sorted, lies outside of the range."""
        begin, end = self.range
        first, last = np.searchsorted(words, np.array([begin << 1, end << 1], np.uint64))
        return len(self._outside) + len(words) - int(last - first) <= OUTSIDE_MAX

    def move(self, new: Range) -> list[Update]:
        """Own another range from now on; return, as exact updates, what is left of the old one outside of
        it.
        """
        begin, end = self.range
        kept = max(begin, new[0]), min(end, new[1])
        residual = np.zeros(new[1] - new[0], np.int32)
        if kept[0] < kept[1]:
            residual[kept[0] - new[0] : kept[1] - new[0]] = self.residual[kept[0] - begin : kept[1] - begin]
            self.residual[kept[0] - begin : kept[1] - begin] = 0
        left = np.flatnonzero(self.residual)
        updates = as_updates(
            left + begin, self.residual[left], kinds_max=KINDS_MAX, magnitude_max=codec.MAGNITUDE_MAX
        )
        self.range, self.residual = new, residual
        inside = [index for index in self._outside if new[0] <= index < new[1]]
        values = [self._outside.pop(index) for index in inside]
        residual[np.array(inside, np.int64) - new[0]] += np.array(values, np.int64).astype(np.int32)
        self._came.clear()
        self._left = np.flatnonzero(residual) + new[0]
        return updates

    def add(self, words: NDArray[np.uint32], magnitude: int) -> None:
        """Add a contribution: words uint32 (n,), sorted."""
        begin, end = self.range
        first, last = np.searchsorted(words, np.array([begin << 1, end << 1], np.uint64))
        inside = words[first:last]
        if len(inside):
            codec.apply_coordinates(self.residual, inside - np.uint32(begin << 1), magnitude)
            self._came.append((inside, magnitude))
            if len(self._came) >= CAME_MAX:
                self._left = self._touched()
                self._came.clear()
        for word in (*words[:first].tolist(), *words[last:].tolist()):
            value = self._outside.get(word >> 1, 0) + (-magnitude if word & 1 else magnitude)
            self._outside[word >> 1] = value

    def take(self, members: int) -> list[Update]:
        """Return what is due, and take it out of the residual; empty if all that came adds up to nothing."""
        updates = self._take_outside()
        if self._came or len(self._left):
            counts = self._look_at_what_came()
            touched = self._touched()
            self._came.clear()
            self._left = touched[:0]
            updates += self._take_inside(touched, counts, members, alone=not updates)
        return updates

    def _touched(self) -> NDArray[np.int64]:
        return np.unique(np.concatenate([self._left, *(words >> np.uint32(1) for words, _ in self._came)]))

    def _look_at_what_came(self) -> NDArray[np.int64]:
        """Return how many indices came, by tensor. No tensor's magnitude stays below that of what came for
        it: a contribution would go out in pieces.
        """
        counts = np.zeros(len(self._starts), np.int64)
        least = np.full(len(self._starts), np.nan)
        for words, magnitude in self._came:
            borders = np.searchsorted(words, self._borders)
            came = np.diff(borders, append=len(words))
            counts += came
            least[came > 0] = np.fmin(least[came > 0], math.log2(magnitude))
        self._floors = np.where(np.isnan(least), self._floors, least)
        self._levels = np.fmax(self._levels, self._floors)
        return counts

    def _take_outside(self) -> list[Update]:
        values = {index: value for index, value in sorted(self._outside.items()) if value}
        self._outside.clear()
        if not values:
            return []
        return as_updates(
            np.fromiter(values.keys(), np.int64),
            np.fromiter(values.values(), np.int64).astype(np.int32),
            kinds_max=KINDS_MAX,
            magnitude_max=codec.MAGNITUDE_MAX,
        )

    def _take_inside(
        self, touched: NDArray[np.int64], counts: NDArray[np.int64], members: int, *, alone: bool
    ) -> list[Update]:
        places = touched - self.range[0]
        values = self.residual[places]
        if members == 1:
            left = values != 0
            self.residual[places] = 0
            return as_updates(
                touched[left], values[left], kinds_max=KINDS_MAX, magnitude_max=codec.MAGNITUDE_MAX
            )
        tensors = np.searchsorted(self._starts, touched, "right") - 1
        sizes = np.abs(values.astype(np.int64))
        magnitudes = self._magnitudes()[tensors]
        due = sizes >= magnitudes
        self._adapt(np.bincount(tensors[due], minlength=len(self._starts)), counts / members)
        if not due.any():
            largest = int(sizes.argmax())
            if not alone or not sizes[largest]:
                return []
            # Or what came would wait for ever, and its contributors with it.
            due[largest] = True
            magnitudes[largest] = min(int(sizes[largest]), codec.MAGNITUDE_MAX)
        chosen, sent = touched[due], magnitudes[due]
        for times in COARSE:
            coarse = (sizes[due] >= times * sent) & (times * sent <= codec.MAGNITUDE_MAX)
            sent = np.where(coarse, times * sent, sent)
        negative = values[due] < 0
        self.residual[chosen - self.range[0]] -= np.where(negative, -sent, sent).astype(np.int32)
        again = chosen[np.abs(self.residual[chosen - self.range[0]]) >= magnitudes[due]]
        if len(again):
            self._left = again
        words = (chosen << 1).astype(np.uint32) | negative.astype(np.uint32)
        return [(int(magnitude), words[sent == magnitude]) for magnitude in np.unique(sent)]

    def _magnitudes(self) -> NDArray[np.int64]:
        floors = np.nan_to_num(self._floors)
        steps = np.round((np.nan_to_num(self._levels) - floors) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE
        sizes = np.clip(np.round(2.0 ** (floors + steps)), 1, codec.MAGNITUDE_MAX)
        magnitudes: NDArray[np.int64] = sizes.astype(np.int64)
        return magnitudes

    def _adapt(self, due: NDArray[np.int64], wanted: NDArray[np.float64]) -> None:
        """Move each tensor's magnitude to where about as many indices go out as are wanted."""
        change = GAIN * np.log2((due + 1) / (wanted + 1))
        self._levels += np.clip(change, -GAIN_MAX, GAIN_MAX)
        self._levels = np.clip(self._levels, 0.0, math.log2(codec.MAGNITUDE_MAX))
