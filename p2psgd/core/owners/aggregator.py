"""The sum of all contributions to an owner's range, and the part of it that is due for an update.

The sums are integers, so the order of contributions does not matter. They wrap at 32 bits, as coordinates do:
far beyond 2^24, where a run has ended. Of gradients the run's rule makes the changes that are added up.
What has not reached its magnitude stays in the second residual [Strom 2015, section 5] and counts later. The
magnitude of each tensor follows from how many indices come in: about as many go out as one node contributes,
however many nodes there are. Of a tensor of which nodes contribute as many indices as it has weights, such as
one in full precision, all goes out at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.owners.ranges import Range, as_updates
from p2psgd.core.owners.rules import make_rule
from p2psgd.core.owners.rules.rule import Floats, OwnerRule
from p2psgd.core.run_spec import RunSpec
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.rule_state import RuleState

STEPS_PER_OCTAVE: Final = 2  # magnitudes are what came times powers of sqrt(2), so that tensors share updates
GAIN: Final = 0.1  # octaves of magnitude for an octave of too many indices
GAIN_MAX: Final = 0.25
KINDS_MAX: Final = 8  # magnitudes of exact values; of more, one update for each bit is shorter
MANY: Final = 16  # as soon as a sixteenth of the range comes, it is swept instead of sorted
COARSE: Final = (16, 4)  # times the magnitude: what is that far beyond it goes at once

CAME_MAX: Final = 4096  # contributions that are kept one by one: then they are counted,
CAME_BYTES_MAX: Final = 64 * 1024**2  # as when they take so much: an owner with a full log does not publish
OUTSIDE_MAX: Final = 2**18  # values outside of the range; members that differ on ranges do so for a moment
OUTSIDE_CONTRIBUTIONS: Final = 2  # or as many as two of the largest contributions hold
CHANGE_MAX: Final = 2.0**24  # quanta, that a rule may make at once: the end of the run

Words = NDArray[np.uint32]
Update = tuple[int, Words]  # a magnitude, and words


class Aggregator:
    """The second residual of one owner's range, int32, and what lies outside of the range for a while."""

    def __init__(self, spec: RunSpec) -> None:
        self.range: Range = (0, 0)
        self.residual: NDArray[np.int32] = np.zeros(0, np.int32)
        self.rule = make_rule(parse_mode(spec.mode).rule)
        self.misplaced: list[tuple[Words, int, float]] = []  # gradients for other ranges, each with its rate
        self.pieces: list[RuleState] = []  # of the rule's state, that other owners need
        self._weights = spec.weights
        self._quantum = np.float32(spec.quantum)
        self._tensors: NDArray[np.int32] = np.zeros(0, np.int32)  # of each weight of the range,
        self._sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # and how many weights of each are in it
        self._starts = np.cumsum([0, *(math.prod(shape) for _, shape in spec.tensors)])[:-1]
        self._borders = (self._starts << 1).astype(np.uint64)  # in words
        self._floors = np.full(len(self._starts), np.nan)  # log2 of the least change that came, by tensor
        self._levels = np.full(len(self._starts), np.nan)  # log2 of the magnitude, by tensor
        # Of what came since the last `take`, words, magnitude and rate; and what was counted of it before:
        self._came: list[tuple[Words, int, float]] = []
        self._came_bytes = 0  # of these words
        self._counts = np.zeros(len(self._starts), np.int64)  # how many indices, by tensor
        self._least = np.full(len(self._starts), np.nan)  # log2 of the least magnitude of changes, by tensor
        self._left: NDArray[np.int64] = np.zeros(0, np.int64)  # beyond their magnitude all the same
        self._outside: dict[int, int] = {}  # values of other ranges, by index

    @property
    def idle(self) -> bool:
        """Return whether nothing has come since the last `take`."""
        return not self._came and not self._counts.any()

    def takes(self, words: Words) -> bool:
        """Return whether there is room for what of these words, sorted, lies outside of the range."""
        begin, end = self.range
        first, last = np.searchsorted(words, np.array([begin << 1, end << 1], np.uint64))
        kept = len(self._outside) + sum(len(gradient) for gradient, _, _ in self.misplaced)
        most = max(OUTSIDE_MAX, OUTSIDE_CONTRIBUTIONS * codec.indices_max(self._weights))
        return kept + len(words) - int(last - first) <= most

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
        if self.rule is not None:
            self.pieces += self.rule.state.move(new)
        self._tensors = (np.searchsorted(self._starts, np.arange(*new), "right") - 1).astype(np.int32)
        self._sizes = np.bincount(self._tensors, minlength=len(self._starts))
        inside = [index for index in self._outside if new[0] <= index < new[1]]
        values = [self._outside.pop(index) for index in inside]
        residual[np.array(inside, np.int64) - new[0]] += np.array(values, np.int64).astype(np.int32)
        self._came.clear()
        self._came_bytes = 0
        self._left = np.flatnonzero(residual) + new[0]
        return updates

    def add(self, words: Words, magnitude: int, rate: float = 0.0) -> None:
        """Add a contribution: words uint32 (n,), sorted; `rate` as in ContributionHeader."""
        begin, end = self.range
        first, last = np.searchsorted(words, np.array([begin << 1, end << 1], np.uint64))
        inside = words[first:last]
        if len(inside):
            if rate:
                self._add_gradient(inside - np.uint32(begin << 1), magnitude, rate)
            else:
                codec.apply_coordinates(self.residual, inside - np.uint32(begin << 1), magnitude)
            self._came.append((inside, magnitude, rate))
            self._came_bytes += inside.nbytes
            if len(self._came) >= CAME_MAX or self._came_bytes >= CAME_BYTES_MAX:
                self._left = self._touched()
                self._count_what_came()
        if rate:
            parts = (words[:first], words[last:])
            self.misplaced += [(part, magnitude, rate) for part in parts if len(part)]
            return
        for word in (*words[:first].tolist(), *words[last:].tolist()):
            value = self._outside.get(word >> 1, 0) + (-magnitude if word & 1 else magnitude)
            self._outside[word >> 1] = value

    def _add_gradient(self, words: Words, magnitude: int, rate: float) -> None:
        assert self.rule is not None
        places = (words >> np.uint32(1)).astype(np.int64)
        size = np.float32(magnitude) * self._quantum
        with np.errstate(all="ignore"):
            changes = self.rule.contribute(places, np.where(words & np.uint32(1), -size, size), rate)
        if changes is not None:
            self.residual[places] += self._in_quanta(changes)

    def _in_quanta(self, changes: Floats) -> NDArray[np.int32]:
        """Return changes in whole quanta; 0 for NaN, which only a peer's nonsense makes."""
        with np.errstate(all="ignore"):
            quanta = np.clip(changes / self._quantum, -CHANGE_MAX, CHANGE_MAX)
        whole: NDArray[np.int32] = np.rint(np.nan_to_num(quanta, copy=False)).astype(np.int32)
        return whole

    def take(self, contributors: int, *, alone: bool, weights: Callable[[], Floats]) -> list[Update]:
        """Return what is due, and take it out of the residual; empty if all that came adds up to nothing.

        `contributors`: of how many nodes something came since the last time. `alone`: there is one member, so
        nothing is kept back. `weights`: returns those of the range, float32 (n,).
        """
        updates = self._take_outside()
        if self._came or len(self._left):
            touched = self._touched()
            counts = self._look_at_what_came()
            changes = None if self.rule is None else self._step(self.rule, weights(), contributors)
            if changes is not None:
                self.residual += self._in_quanta(changes)
                touched = np.flatnonzero(self.residual) + self.range[0]
            self._left = touched[:0]
            wanted = counts / max(1, contributors)
            whole = wanted >= self._sizes
            whole |= alone and self.rule is None
            if whole.any():
                here = whole[self._tensors[touched - self.range[0]]]
                updates += self._take_all(touched[here])
                touched = touched[~here]
            if len(touched):
                updates += self._take_due(touched, wanted, last=not updates)
        return updates

    def _step(self, rule: OwnerRule, weights: Floats, contributors: int) -> Floats | None:
        with np.errstate(all="ignore"):
            return rule.step(weights, max(1, contributors))

    def _touched(self) -> NDArray[np.int64]:
        touched = [self._left, *(words >> np.uint32(1) for words, _, _ in self._came)]
        if sum(map(len, touched)) < len(self.residual) // MANY:
            return np.unique(np.concatenate(touched))
        here = np.zeros(len(self.residual), bool)
        for indices in touched:
            here[indices - self.range[0]] = True
        return np.flatnonzero(here) + self.range[0]

    def _look_at_what_came(self) -> NDArray[np.int64]:
        """Return how many indices came, by tensor. No tensor's magnitude stays below that of what came for
        it: a contribution would go out in pieces.
        """
        self._count_what_came()
        self._floors = np.where(np.isnan(self._least), self._floors, self._least)
        self._levels = np.fmax(self._levels, self._floors)
        counts = self._counts.copy()
        self._counts[:], self._least[:] = 0, np.nan
        return counts

    def _count_what_came(self) -> None:
        for words, magnitude, rate in self._came:
            borders = np.searchsorted(words, self._borders)
            came = np.diff(borders, append=len(words))
            self._counts += came
            if not rate:
                self._least[came > 0] = np.fmin(self._least[came > 0], math.log2(magnitude))
        self._came.clear()
        self._came_bytes = 0

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

    def _take_all(self, touched: NDArray[np.int64]) -> list[Update]:
        places = touched - self.range[0]
        values = self.residual[places]
        left = values != 0
        self.residual[places] = 0
        return as_updates(touched[left], values[left], kinds_max=KINDS_MAX, magnitude_max=codec.MAGNITUDE_MAX)

    def _take_due(
        self, touched: NDArray[np.int64], wanted: NDArray[np.float64], *, last: bool
    ) -> list[Update]:
        """Return what has reached its magnitude. `wanted`: about how many indices of each tensor. `last`: if
        nothing has, return the largest, since there is nothing else to publish.
        """
        places = touched - self.range[0]
        values = self.residual[places]
        tensors = self._tensors[places]
        sizes = np.abs(values.astype(np.int64))
        self._begin_levels(tensors, sizes, wanted)
        magnitudes = self._magnitudes()[tensors]
        due = sizes >= magnitudes
        self._adapt(np.bincount(tensors[due], minlength=len(self._starts)), wanted)
        if not due.any():
            largest = int(sizes.argmax()) if len(sizes) else 0
            if not last or not len(sizes) or not sizes[largest]:
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

    def _begin_levels(
        self, tensors: NDArray[np.int32], sizes: NDArray[np.int64], wanted: NDArray[np.float64]
    ) -> None:
        """Begin where a rule makes the changes, whose size is not known before, at what as many exceed as are
        wanted.
        """
        for tensor in np.unique(tensors[np.isnan(self._levels)[tensors]]):
            here = np.sort(sizes[tensors == tensor])
            place = max(0, len(here) - 1 - int(wanted[tensor]))
            self._levels[tensor] = math.log2(max(1, int(here[place])))

    def _magnitudes(self) -> NDArray[np.int64]:
        floors = np.nan_to_num(self._floors)
        steps = np.round((np.nan_to_num(self._levels) - floors) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE
        sizes = np.clip(np.round(2.0 ** (floors + steps)), 1, codec.MAGNITUDE_MAX)
        magnitudes: NDArray[np.int64] = sizes.astype(np.int64)
        return magnitudes

    def _adapt(self, due: NDArray[np.int64], wanted: NDArray[np.float64]) -> None:
        """Move each tensor's magnitude to where about as many indices go out as are wanted."""
        change = GAIN * (due - wanted) / (wanted + 1)
        self._levels += np.clip(change, -GAIN_MAX, GAIN_MAX)
        self._levels = np.clip(self._levels, 0.0, math.log2(codec.MAGNITUDE_MAX))
