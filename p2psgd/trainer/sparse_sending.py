"""From a gradient to a sparse update: minus the learning rate times the gradient, steps that fit, and a
residual that stays a sum of gradients [Strom 2015, section 3].

When the rate changes the residual changes with it, so that none of it is sent for the sole reason that the
step is smaller now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from p2psgd.trainer.net import Shape, Vector
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.step_size import StepSizes


class SparseLink(Protocol):
    """What is asked of a link."""

    @property
    def residual(self) -> Vector:
        """(P,) what was proposed and not yet sent."""

    @property
    def sent(self) -> Mapping[str, int]:
        """How many indices of each tensor the last send() sent."""

    def send(self, delta: Vector, step: int | Mapping[str, int]) -> int:
        """Propose a change of all weights; returns how many indices were sent.

        step: in quanta, for all tensors or by tensor name.
        """


class SparseSending:
    """Of one trainer."""

    def __init__(self, recipe: Recipe, shape: Shape, link: SparseLink) -> None:
        self._link = link
        self._step_sizes = StepSizes(recipe, shape.tensors)
        self.rate: float | None = None  # of the last mini-batch, also of an earlier life's; None: not known

    @property
    def taus(self) -> list[float]:
        """The thresholds, one for each rule, in units of the mean gradient."""
        return self._step_sizes.taus

    def restore(self, taus: Sequence[float]) -> None:
        """Go on from what `taus` was in an earlier life."""
        self._step_sizes.restore(taus)

    def send(self, gradient: Vector, rate: float) -> None:
        """Send what has grown beyond the step with this gradient (P,), which is changed; `rate`: the learning
        rate.
        """
        link = self._link
        before = rate if self.rate is None else self.rate
        gradient *= np.float32(-rate)
        if rate != before:
            gradient += np.float32(rate / before - 1) * link.residual
        link.send(gradient, self._step_sizes.step(rate))
        self.rate = rate
        self._step_sizes.sent(link.sent)
