"""SGD with Nesterov momentum [Nesterov 1983] on the mean over nodes of what a round brought.

The form is that of torch.optim.SGD(nesterov=True): the gradient is taken at the weights, and each step looks
ahead by the momentum of the next one [Sutskever 2013, section 2]. With what H steps of a node's own optimizer
have changed in the place of the gradient it is an outer step [DiLoCo 2023, algorithm 1; arXiv 2311.08105].
"""

from __future__ import annotations

import numpy as np

from p2psgd.core.owners.rules.mean import MeanGradient
from p2psgd.core.owners.rules.rule import Floats, Places, RangeState

VELOCITY = "velocity"


class Nesterov:
    """Makes a step at each publication of the owner, for its whole range."""

    def __init__(self, *, momentum: float) -> None:
        self.state = RangeState({VELOCITY: momentum})
        self._momentum = np.float32(momentum)
        self._mean = MeanGradient()

    def contribute(self, places: Places, gradient: Floats, rate: float) -> Floats | None:
        """Note the gradient for the next step."""
        self._mean.add(places, gradient, rate, size=len(self.state.arrays[VELOCITY]))
        return None

    def step(self, weights: Floats, contributors: int) -> Floats | None:
        """Return the changes."""
        gradient = self._mean.take(contributors)
        if gradient is None:
            return None
        self.state.steps += 1
        velocity = self.state.arrays[VELOCITY]
        velocity *= self._momentum
        velocity += gradient
        changes: Floats = -np.float32(self._mean.rate) * (gradient + self._momentum * velocity)
        return changes
