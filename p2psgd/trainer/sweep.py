"""The residual pass of a whole `send`: tensors that share a step are swept together, each such group once.

An update bears one step, so every group becomes an update of its own. One send takes about as many words as
one update may hold, shared among the groups by their weights: that bounds what peers must do for a
mini-batch, however many steps it has. What exceeds a group's share waits; the next send begins at the first
weight that missed its turn, goes around, and so starves nobody, whatever the groups are by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.ipc.proposal import Tensors
from p2psgd.wire import codec

Range = tuple[int, int]  # of weights: begin, end
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Group:
    """The weights that move by one step; `ranges` ascend and do not touch each other."""

    step: int  # quanta
    ranges: tuple[Range, ...]
    room: int  # most words of one send


class Sweep:
    """Residual passes over the weights of `tensors`.

    `indices_max` is the most that one update may hold. What `run` returns is overwritten by the next one.
    """

    def __init__(self, tensors: Tensors, *, indices_max: int, quantum: float) -> None:
        self._ranges: dict[str, Range] = {}
        self._weights = 0
        for name, shape in tensors:
            begin, self._weights = self._weights, self._weights + math.prod(shape)
            self._ranges[name] = (begin, self._weights)
        self._indices_max = indices_max
        self._quantum = quantum
        self._first_words = np.array([begin << 1 for begin, _ in self._ranges.values()], np.uint32)
        self._words = np.empty(indices_max + len(tensors), np.uint32)
        self._start = 0  # the weight where the next run begins in every group

    def groups(self, step: int | Mapping[str, int]) -> list[Group]:
        """All weights by their step, in quanta; TrainerError for one out of range or a tensor without one."""
        if not isinstance(step, Mapping):
            return [self._group(_checked(step, "step"), [(0, self._weights)])]
        if step.keys() != self._ranges.keys():
            unknown = [name for name in step if name not in self._ranges]
            missing = [name for name in self._ranges if name not in step]
            what = f"there is no tensor {unknown[0]!r}" if unknown else f"{missing[0]!r} has none"
            known = ", ".join(map(repr, self._ranges))
            raise TrainerError(f"step must name every tensor, {known}, and no other: {what}")
        ranges: dict[int, list[Range]] = {}
        for name, (begin, end) in self._ranges.items():
            same = ranges.setdefault(_checked(step[name], f"step of {name!r}"), [])
            joins = bool(same) and same[-1][1] == begin
            same.append((same.pop()[0] if joins else begin, end))
        return [self._group(number, same) for number, same in ranges.items()]

    def run(
        self,
        source: NDArray[np.float32],
        delta: NDArray[Any],
        target: NDArray[np.float32],
        groups: Sequence[Group],
    ) -> list[tuple[Group, Words]]:
        """target = source + delta less what is to be sent, all (P,); the words of each group that has some.

        ValueError, with `target` undefined and all else unchanged, if a sum is NaN or infinite.
        """
        swept: list[tuple[Group, Words]] = []
        waits = self._weights  # how far after the start the first weight lies that missed its turn
        used = 0
        for group in groups:
            words = self._words[used : used + group.room]
            count, turn, missed = self._run_group(source, delta, target, words, group)
            if missed is not None:
                waits = min(waits, (missed - self._start) % self._weights)
            if count:
                # after a turn in the middle, the lower indices came last
                ordered = words[:count] if turn == count else np.roll(words[:count], -turn)
                swept.append((group, ordered))
            used += count
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

    def _run_group(
        self,
        source: NDArray[np.float32],
        delta: NDArray[Any],
        target: NDArray[np.float32],
        words: Words,
        group: Group,
    ) -> tuple[int, int, int | None]:
        """How many words, how many of them before the turn to the lower weights, the first weight missed."""
        start = self._start
        upper = [(max(begin, start), end) for begin, end in group.ranges if end > start]
        lower = [(begin, min(end, start)) for begin, end in group.ranges if begin < start]
        count = turn = 0
        first_missed = None
        for part in (upper, lower):
            for begin, end in part:
                found, missed = codec.residual_pass(
                    source[begin:end],
                    delta[begin:end],
                    target[begin:end],
                    words[count:],
                    threshold=group.step * self._quantum,
                    first=begin,
                )
                count += found
                if missed is not None and first_missed is None:
                    first_missed = begin + missed
            if part is upper:
                turn = count
        return count, turn, first_missed


def _checked(step: object, what: str) -> int:
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not 1 <= step <= codec.STEP_MAX:
        raise TrainerError(f"{what} must be an int, the quanta, from 1 to {codec.STEP_MAX}; it is {step!r}")
    return int(step)
