"""AdamW [Loshchilov and Hutter 2019, algorithm 2] on the mean over nodes of what came since the last step."""

from __future__ import annotations

import numpy as np

from p2psgd.core.owners.rules.mean import MeanGradient
from p2psgd.core.owners.rules.rule import Floats, Places, RangeState

FIRST, SECOND = "first moment", "second moment"


class AdamW:
    """Makes a step at each publication of the owner, for its whole range."""

    def __init__(self, *, beta1: float, beta2: float, epsilon: float, weight_decay: float) -> None:
        self.state = RangeState({FIRST: beta1, SECOND: beta2}, squares=SECOND)
        self._betas, self._epsilon, self._weight_decay = (beta1, beta2), np.float32(epsilon), weight_decay
        self._mean = MeanGradient()

    def contribute(self, places: Places, gradient: Floats, rate: float) -> Floats | None:
        """Note the gradient for the next step."""
        self._mean.add(places, gradient, rate, size=len(self.state.arrays[FIRST]))
        return None

    def step(self, weights: Floats, contributors: int) -> Floats | None:
        """Return the changes."""
        gradient = self._mean.take(contributors)
        if gradient is None:
            return None
        state = self.state
        state.steps += 1
        first, second = state.arrays[FIRST], state.arrays[SECOND]
        beta1, beta2 = self._betas
        first += np.float32(1 - beta1) * (gradient - first)
        second += np.float32(1 - beta2) * (gradient * gradient - second)
        mean = first / np.float32(1 - beta1**state.steps)
        square = second / np.float32(1 - beta2**state.steps)
        rate = np.float32(self._mean.rate)
        changes: Floats = -rate * mean / (np.sqrt(square) + self._epsilon)
        changes -= rate * np.float32(self._weight_decay) * weights
        return changes
