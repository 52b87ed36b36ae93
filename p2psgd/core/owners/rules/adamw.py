"""AdamW [Loshchilov and Hutter 2019, algorithm 2] on the mean over nodes of what came since the last step."""

from __future__ import annotations

import numpy as np

from p2psgd.core.owners.rules.rule import Floats, Places, RangeState

FIRST, SECOND = "first moment", "second moment"


class AdamW:
    """Makes a step at each publication of the owner, for its whole range."""

    def __init__(self, *, beta1: float, beta2: float, epsilon: float, weight_decay: float) -> None:
        self.state = RangeState({FIRST: beta1, SECOND: beta2}, squares=SECOND)
        self._betas, self._epsilon, self._weight_decay = (beta1, beta2), np.float32(epsilon), weight_decay
        self._sum: Floats = np.zeros(0, np.float32)
        self._contributions = 0
        self._rate = 0.0

    def contribute(self, places: Places, gradient: Floats, rate: float) -> Floats | None:
        """Note the gradient for the next step."""
        size = len(self.state.arrays[FIRST])
        if len(self._sum) != size or not self._contributions:
            self._sum, self._contributions = np.zeros(size, np.float32), 0
        self._sum[places] += gradient
        self._contributions += 1
        self._rate = rate
        return None

    def step(self, weights: Floats, contributors: int) -> Floats | None:
        """Return the changes."""
        if not self._contributions:
            return None
        state = self.state
        state.steps += 1
        first, second = state.arrays[FIRST], state.arrays[SECOND]
        gradient = self._sum / np.float32(contributors)
        self._contributions = 0
        beta1, beta2 = self._betas
        first += np.float32(1 - beta1) * (gradient - first)
        second += np.float32(1 - beta2) * (gradient * gradient - second)
        mean = first / np.float32(1 - beta1**state.steps)
        square = second / np.float32(1 - beta2**state.steps)
        rate = np.float32(self._rate)
        changes: Floats = -rate * mean / (np.sqrt(square) + self._epsilon)
        changes -= rate * np.float32(self._weight_decay) * weights
        return changes
