"""The interface of a rule at one owner, and the state that it keeps for the owner's range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.owners.ranges import Range
from p2psgd.wire.cover import NUMBER_MAX
from p2psgd.wire.rule_state import Kind, RuleState

Floats = NDArray[np.float32]
Places = NDArray[np.int64]  # weights, counted from the first one of the range
LARGEST: Final = np.finfo(np.float32).max  # a state that is not finite would be refused by all others
STEPS_MAX: Final = 2**62  # that others' states bring: own steps are counted beyond, in int64


class OwnerRule(Protocol):
    """Makes changes of gradients, in the unit of the weights."""

    state: RangeState

    def contribute(self, places: Places, gradient: Floats, rate: float) -> Floats | None:
        """Take one contribution: `gradient` (n,) at `places` (n,), all different. Return the changes (n,)
        there; None if `step` makes them.
        """

    def step(self, weights: Floats, contributors: int) -> Floats | None:
        """Return the changes of the whole range, whose weights are `weights` (n,), from what `contributors`
        nodes gave since the last step; None if there is nothing.
        """


class RangeState:
    """Arrays of float32 (n,) for the n weights of an owner's range, which begin at zero.

    Each is a sum over steps in which older ones count less: after a step `decays[name]` remains of it. So a
    state that another node kept for a weight can be added to what this one has begun from zero meanwhile, and
    is as if it had been here from the start. A spare, a copy of what another may have given as well, is added
    once at most, and only to a weight of which nothing else has come since it moved here.
    """

    def __init__(self, decays: Mapping[str, float], *, squares: str | None = None) -> None:
        """`squares`: the array that is of squares, if one is."""
        self.range: Range = (0, 0)
        self.steps = 0  # contributions, or steps if the rule makes changes at these
        self.arrays = {name: np.zeros(0, np.float32) for name in decays}
        self._decays = dict(decays)
        self._squares = [] if squares is None else [list(decays).index(squares)]
        # By weight, the steps when it began here, and -1 once what another kept has come:
        self._begun: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def lacks_all(self) -> bool:
        """Return whether nothing that another kept has come for these weights yet, for any of them."""
        return bool((self._begun >= 0).all())

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
        arrays = np.stack([array[first:last] for array in self.arrays.values()])
        return RuleState(begin, min(self.steps, NUMBER_MAX), arrays)

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
        before, self._begun = self._begun, np.full(size, self.steps)
        old = self.arrays
        self.arrays = {name: np.zeros(size, np.float32) for name in old}
        if kept[0] < kept[1]:
            here = slice(kept[0] - new[0], kept[1] - new[0])
            there = slice(kept[0] - begin, kept[1] - begin)
            self._begun[here] = before[there]
            for name, array in self.arrays.items():
                array[here] = old[name][there]
        self.range = new
        return pieces

    def complete(self) -> None:
        """Wait for no spare any more."""
        self._begun[:] = -1

    def add(self, piece: RuleState) -> None:
        """Add what another node kept."""
        begin, end = max(piece.begin, self.range[0]), min(piece.range[1], self.range[1])
        if begin >= end:
            return
        here = slice(begin - self.range[0], end - self.range[0])
        values = piece.part(begin, end).arrays
        lacks = self._begun[here] >= 0
        taken = lacks | (piece.kind is not Kind.SPARE)
        if not taken.any():
            return
        since = np.where(lacks, self.steps - self._begun[here], 0)
        for decay, array, added in zip(self._decays.values(), self.arrays.values(), values, strict=True):
            remains = np.float32(decay) ** since.astype(np.float32)
            with np.errstate(over="ignore"):
                sums = array[here] + np.where(taken, added * remains, np.float32(0))
            np.clip(sums, -LARGEST, LARGEST, out=array[here])
        older = max(0, min(piece.steps + int(since.max()), STEPS_MAX) - self.steps)
        self.steps += older
        self._begun[self._begun >= 0] += older
        self._begun[here] = -1
