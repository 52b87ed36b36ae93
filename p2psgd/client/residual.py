"""The residual pass of a whole `send`: tensors that share a step are swept together, each such group once.
What passes over weights is whoever holds them (host_compute.py); this file says in which order, and what
follows.

An update bears one step, so every group becomes an update of its own. One send takes about as many words as
one update may hold, shared among the groups by their weights: that bounds what peers must do for a
mini-batch, however many steps it has. What exceeds a group's share waits; the next send begins at the first
weight that missed its turn, goes around, and so starves nobody, whatever the groups are by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.wire import codec

Range = tuple[int, int]  # of weights: begin, end
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Group:
    """The weights that move by one step; `ranges` ascend and do not touch each other."""

    step: int  # quanta
    ranges: tuple[Range, ...]
    room: int  # most words of one send


@dataclass(frozen=True, slots=True)
class Segment:
    """Residual passes over one range after the other, whose words follow each other: `room` in all.

    A weight is sent when its residual exceeds `threshold` in magnitude.
    """

    ranges: tuple[Range, ...]
    threshold: float
    room: int


@dataclass(frozen=True, slots=True)
class PassResult:
    """What the passes of a chain found: `words`, of each range `counts`; the first weight, as they went, that
    found no room, else None.
    """

    words: Words
    counts: Sequence[int]
    missed: int | None


def words_max(indices_max: int, tensors: Tensors) -> int:
    """The most words that all chains of one run have room for, if one update has at most `indices_max`."""
    return indices_max + len(tensors)


PassOver = Callable[[Sequence[Segment]], list[PassResult]]


class ResidualPass:
    """Residual passes over the weights of `tensors`.

    `indices_max` is the most that one update may hold.
    """

    def __init__(self, tensors: Tensors, *, indices_max: int, quantum: float) -> None:
        self._ranges: dict[str, Range] = {}
        self._weights = 0
        for name, shape in tensors:
            begin, self._weights = self._weights, self._weights + math.prod(shape)
            self._ranges[name] = (begin, self._weights)
        self._whole = ((0, self._weights),)
        self._indices_max = indices_max
        self._quantum = quantum
        self._first_words = np.array([begin << 1 for begin, _ in self._ranges.values()], np.uint32)
        self._start = 0  # the weight where the next run begins in every group

    def groups(self, threshold: int | Mapping[str, int]) -> list[Group]:
        """Return all weights grouped by threshold, in quanta.

        Raises TrainerError for a threshold out of range or a tensor without one.
        """
        if not isinstance(threshold, Mapping):
            room = min(self._weights, max(1, self._indices_max))
            return [Group(_checked(threshold, "threshold"), self._whole, room)]
        if threshold.keys() != self._ranges.keys():
            unknown = [name for name in threshold if name not in self._ranges]
            missing = [name for name in self._ranges if name not in threshold]
            what = f"there is no tensor {unknown[0]!r}" if unknown else f"{missing[0]!r} has none"
            known = ", ".join(map(repr, self._ranges))
            raise TrainerError(f"threshold must name every tensor, {known}, and no other: {what}")
        ranges: dict[int, list[Range]] = {}
        for name, (begin, end) in self._ranges.items():
            same = ranges.setdefault(_checked(threshold[name], f"threshold of {name!r}"), [])
            joins = bool(same) and same[-1][1] == begin
            same.append((same.pop()[0] if joins else begin, end))
        return [self._group(number, same) for number, same in ranges.items()]

    def run(self, pass_over: PassOver, groups: Sequence[Group]) -> list[tuple[Group, Words]]:
        """Have the chains of these groups passed over; the words of each group that has some, ascending.

        ValueErrors of `pass_over` pass through: nothing has changed then.
        """
        swept: list[tuple[Group, Words]] = []
        waits = self._weights  # how far after the start the first weight lies that missed its turn
        uppers: list[int] = []  # how many ranges of each group come before the turn
        chains: list[Segment] = []
        for group in groups:
            upper, lower = self._parts(group) if self._start else (group.ranges, ())
            uppers.append(len(upper))
            chains.append(Segment((*upper, *lower), group.step * self._quantum, group.room))
        for group, upper_ranges, found in zip(groups, uppers, pass_over(chains), strict=True):
            if found.missed is not None:
                waits = min(waits, (found.missed - self._start) % self._weights)
            count, turn = len(found.words), sum(found.counts[:upper_ranges])
            if count:
                # after a turn in the middle, the lower indices came last
                swept.append((group, found.words if turn == count else np.roll(found.words, -turn)))
        self._start = 0 if waits == self._weights else (self._start + waits) % self._weights
        return swept

    def count(self, swept: Sequence[tuple[Group, Words]]) -> dict[str, int]:
        """How many words each tensor has."""
        counts = np.zeros(len(self._ranges), np.int64)
        for _, words in swept:
            counts += np.diff(np.searchsorted(words, self._first_words), append=len(words))
        return dict(zip(self._ranges, counts.tolist(), strict=True))

    def _group(self, step: int, ranges: list[Range]) -> Group:
        size = sum(end - begin for begin, end in ranges)
        return Group(step, tuple(ranges), min(size, max(1, self._indices_max * size // self._weights)))

    def _parts(self, group: Group) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
        """The group's ranges from the start on, and those before it, whose turn comes after them."""
        start = self._start
        upper = tuple((max(begin, start), end) for begin, end in group.ranges if end > start)
        return upper, tuple((begin, min(end, start)) for begin, end in group.ranges if begin < start)


def _checked(step: object, what: str) -> int:
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not 1 <= step <= codec.STEP_MAX:
        raise TrainerError(f"{what} must be an int, the quanta, from 1 to {codec.STEP_MAX}; it is {step!r}")
    return int(step)
