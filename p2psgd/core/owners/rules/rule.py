"""The interface of a rule at one owner, and the state that it keeps for the owner's range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.owners.ranges import Range
from p2psgd.wire.cover import NUMBER_MAX
from p2psgd.wire.rule_state import RuleState

Floats = NDArray[np.float32]
Places = NDArray[np.int64]  # weights, counted from the first one of the range


class OwnerRule(Protocol):
    """Makes changes of gradients, in the unit of the weights."""

    state: RangeState

    def contribute(self, places: Places, gradient: Floats, rate: float) -> Floats | None:
        """Take one contribution: `gradient` (n,) at `places` (n,), all different. Return the changes (n,)
        there; None if `step` makes them.
        """

    def step(self, weights: Floats) -> Floats | None:
        """Return the changes of the whole range, whose weights are `weights` (n,), from what was contributed
        since the last step; None if there is nothing.
        """


class RangeState:
    """Arrays of float32 (n,) for the n weights of an owner's range, which begin at zero.

    Each is a sum over steps in which older ones count less: after a step `decays[name]` remains of it. So a
    state that another node kept for a weight can be added to what this one has begun from zero meanwhile, and
    is as if it had been here from the start. It is added once.
    """

    def __init__(self, decays: Mapping[str, float], *, squares: str) -> None:
        """`squares`: the array that is of squares."""
        self.range: Range = (0, 0)
        self.steps = 0  # contributions, or steps if the rule makes changes at these
        self.arrays = {name: np.zeros(0, np.float32) for name in decays}
        self._decays = dict(decays)
        self._squares = list(decays).index(squares)
        self._lacks: NDArray[np.bool_] = np.zeros(0, np.bool_)  # what another kept is still to come
        self._begun = 0  # the steps when these began

    @property
    def size_bytes(self) -> int:
        """Return the size of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def can_be(self, arrays: Floats) -> bool:
        """Return whether another node can have these arrays (arrays, n)."""
        return bool((arrays[self._squares] >= 0).all())

    def cut(self, begin: int, end: int) -> RuleState:
        """Return a copy of the state of these weights, all of them of the range."""
        first, last = begin - self.range[0], end - self.range[0]
        return RuleState(
            begin,
            min(self.steps, NUMBER_MAX),
            np.stack([array[first:last] for array in self.arrays.values()]),
        )

    def move(self, new: Range) -> list[RuleState]:
        """Keep the state of another range from now on, zero where it is not known; return that of the weights
        which are not in it.
        """
        begin, end = self.range
        kept = max(begin, new[0]), min(end, new[1])
        if kept[0] >= kept[1]:
            kept = begin, begin
        lost = [(begin, kept[0]), (kept[1], end)]
        pieces = [self.cut(*part) for part in lost if part[0] < part[1]]
        pieces = [piece for piece in pieces if piece.arrays.any()]  # of zeros nobody lacks anything
        size = new[1] - new[0]
        before, self._lacks = self._lacks, np.ones(size, np.bool_)
        old = self.arrays
        self.arrays = {name: np.zeros(size, np.float32) for name in old}
        if kept[0] < kept[1]:
            here = slice(kept[0] - new[0], kept[1] - new[0])
            there = slice(kept[0] - begin, kept[1] - begin)
            self._lacks[here] = before[there]
            for name, array in self.arrays.items():
                array[here] = old[name][there]
        self.range, self._begun = new, self.steps
        return pieces

    def complete(self) -> None:
        """Wait for nothing any more: what comes from now on has been here before, or is not missed."""
        self._lacks[:] = False

    def add(self, piece: RuleState) -> None:
        """Add what another node kept, where this one began from zero."""
        begin, end = max(piece.begin, self.range[0]), min(piece.range[1], self.range[1])
        if begin >= end:
            return
        here = slice(begin - self.range[0], end - self.range[0])
        there = slice(begin - piece.begin, end - piece.begin)
        taken = self._lacks[here]
        since = self.steps - self._begun
        for decay, array, values in zip(
            self._decays.values(), self.arrays.values(), piece.arrays, strict=True
        ):
            array[here] += np.where(taken, values[there] * np.float32(decay**since), np.float32(0))
        self._lacks[here] = False
        older = max(0, piece.steps + since - self.steps)
        self.steps += older
        self._begun += older
