"""The weights after a round, made beside those of now while its sums come in.

New weight = weight + sum of the changes * float32(1 / contributors): the mean of the shares, in float32 and
in this order, so that every node has the same bits. Made piece by piece with the digest, so that completing
a round is a change of places, as a whole and at once.

The digest of the weights that it starts from is worked out again on the way: memory that has changed there
would else give wrong weights with a right digest, which nobody but the others could see.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alarm
from p2psgd.core.parts import Parts
from p2psgd.core.state import State
from p2psgd.wire import codec

U64_MODULUS: Final = 2**64
CHANGED: Final = "the weights in memory have changed since the last round, by bad memory or a bug"


class NextWeights:
    """Of one round after the other."""

    def __init__(self, state: State) -> None:
        self.digest = 0  # of the weights made so far
        self._state = state
        self._made = 0
        self._before = 0  # the digest of those that they were made from
        self._target: NDArray[np.int32] | None = None
        self._idle: list[NDArray[np.int32]] = []  # memory of former weights

    def begin(self) -> None:
        """Begin anew: nothing of what was made is wanted."""
        self.digest = self._before = self._made = 0

    def take(self, start: int, sums: NDArray[np.float32], contributors: int) -> None:
        """`sums` float32 (n,) are those of the weights from `start` on, each of which comes once."""
        if self._target is None:
            self._target = self._find_memory()
        part = slice(start, start + len(sums))
        old, new = self._state.lattice.coordinates[part], self._target[part]
        factor = float(np.float32(1 / contributors))
        before, after = codec.move_weights(old, sums, factor, new, key=self._state.spec.key, start=start)
        self._before = (self._before + before) % U64_MODULUS
        self.digest = (self.digest + after) % U64_MODULUS
        self._made += len(sums)

    def is_sound(self, parts: Parts, now: float) -> bool:
        """The weights that those made were made from, all of them, have their digest. If not, people are
        told, and the next tick's scrub finds it too.
        """
        assert self._made == len(self._state.lattice.coordinates), self._made
        if self._before == self._state.lattice.digest:
            return True
        parts.out.order(Alarm(f"{CHANGED}: the round is not completed, and the weights are looked at anew"))
        parts.sweeping.scrub_at_once(now)
        return False

    def complete(self, *, view: int, number: int) -> None:
        """All are made: they are the replica's from now on."""
        assert self._target is not None
        before = self._state.complete_round(self._target, self.digest, view=view, number=number)
        self._idle = [each for each in self._idle if self._state.is_reading(each)]
        self._idle.append(before)
        self._target = None
        self.begin()

    def _find_memory(self) -> NDArray[np.int32]:
        """Former weights that no copy or scrub goes over any more, or else memory of its own."""
        for place, each in enumerate(self._idle):
            if not self._state.is_reading(each):
                return self._idle.pop(place)
        return np.empty_like(self._state.lattice.coordinates)
