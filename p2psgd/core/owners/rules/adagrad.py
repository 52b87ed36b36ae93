"""Adagrad [Duchi 2011], as the servers of Downpour have it [DistBelief 2012, section 4.1].

Each contribution g changes a weight by -rate g / (sqrt(G) + epsilon). G is `initial` and the squares of all
gradients that owners were given for that weight, this one's among them.
"""

from __future__ import annotations

import numpy as np

from p2psgd.core.owners.rules.rule import Floats, Places, RangeState

SQUARES = "squares"


class Adagrad:
    """Makes changes at each contribution."""

    def __init__(self, *, epsilon: float, initial: float) -> None:
        self.state = RangeState({SQUARES: 1.0}, squares=SQUARES)
        self._epsilon, self._initial = np.float32(epsilon), np.float32(initial)

    def contribute(self, places: Places, gradient: Floats, rate: float) -> Floats | None:
        """Return the changes."""
        squares = self.state.arrays[SQUARES]
        summed: Floats = squares[places] + gradient * gradient
        squares[places] = summed
        self.state.steps += 1
        changes: Floats = -np.float32(rate) * gradient / (np.sqrt(summed + self._initial) + self._epsilon)
        return changes

    def step(self, weights: Floats, contributors: int) -> Floats | None:
        """Return nothing."""
        return None
