"""Decides by how much a weight moves when it is sent: the step of each parameter for each mini-batch.

What is large enough to send follows the learning rate of the parameter's group, as in the built-in trainer:
step = rate * tau. Optimisers differ a thousandfold in what they make of a rate, so tau is steered to the
wanted density, and begins where the first change suggests.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2psgd.client.step_size import StepSize

Range = tuple[int, int]  # of weights: begin, end


class Steps:
    """Chooses the thresholds of one trainer with these `ranges`, by either density or tau.

    With `shrinks` the residual shrinks with a rate that falls, so that none of it is sent only because the
    threshold is smaller now. It must not where the residual counts for the model of this node, which would
    go back by as much.
    """

    def __init__(
        self,
        ranges: Mapping[str, Range],
        *,
        density: float | None,
        tau: float | None,
        quantum: float,
        shrinks: bool = True,
    ) -> None:
        self._shrinks = shrinks
        self._ranges = ranges
        self._weights = max(end for _, end in ranges.values())
        self._size = StepSize(self._weights, quantum, tau=tau, density=density)
        self._begun = density is None  # tau is that of a change that was seen
        self._rates: list[float] | None = None  # at which all that waits was made
        self._taken: list[float] | None = None  # and what is being sent

    @property
    def tau(self) -> float | None:
        """The threshold in units of the learning rate; None until a change was seen."""
        return self._size.tau if self._begun else None

    @property
    def rates(self) -> Sequence[float]:
        """The rate of each parameter in the last mini-batch; where that was 0, the one before."""
        return self._rates or []

    def restore(self, tau: float | None, rates: Sequence[float]) -> None:
        """Continue from an earlier start; empty `rates` mean a residual of an unknown rate."""
        if tau is not None:
            self._size.restore(tau)
            self._begun = True
        if len(rates) == len(self._ranges):
            self._rates = list(rates)

    def take(self, delta: Any, residual: Any, rates: Sequence[float]) -> int | dict[str, int]:
        """Return the threshold in quanta, for all parameters or by name, for a change (P,) made at these
        rates.

        `delta` is changed where the residual shrinks.
        """
        before = self._rates or [rate or 1.0 for rate in rates]
        now = [rate or last for rate, last in zip(rates, before, strict=True)]
        for (begin, end), rate, last in zip(self._ranges.values(), now, before, strict=True):
            if self._shrinks and rate < last:
                delta[begin:end] += residual[begin:end] * np.float32(rate / last - 1)
        if not self._shrinks and self._begun:
            self._keep_threshold(before, now)
        self._taken = now
        if not self._begun:
            self._begin(delta, now)
        steps = {name: self._size.step(rate) for name, rate in zip(self._ranges, now, strict=True)}
        return steps if len(set(steps.values())) > 1 else next(iter(steps.values()))

    def _keep_threshold(self, before: Sequence[float], now: Sequence[float]) -> None:
        """Let the threshold fall no faster than the density asks for where the rate falls: of a residual that
        stays as it is, a rate that falls tenfold would send nearly all at once. A fixed tau stays.
        """
        sizes = [end - begin for begin, end in self._ranges.values()]
        then, here = (sum(map(operator.mul, sizes, rates)) for rates in (before, now))
        if here < then:
            self._size.restore(self._size.tau * then / here)

    def sent(self, counts: Mapping[str, int]) -> None:
        """Learn how many indices of each parameter the last mini-batch sent; it is in the residual."""
        self._rates = self._taken
        if self._begun:
            self._size.sent(sum(counts.values()))

    def _begin(self, delta: Any, rates: Sequence[float]) -> None:
        """Find a tau to begin with.

        The residual of a weight that drifts reaches a step of mean / density in 1 / density mini-batches, one
        that wanders a step of mean / sqrt(density). Real weights are in between. The second value sends too
        much rather than too little, which the first mini-batches tolerate better.
        """
        assert self._size.density is not None
        parts = zip(self._ranges.values(), rates, strict=True)
        total = sum(float(abs(delta[begin:end]).sum()) / rate for (begin, end), rate in parts)
        if total > 0 and math.isfinite(total):
            self._size.restore(total / self._weights / math.sqrt(self._size.density))
            self._begun = True
