"""Chooses the threshold of each parameter for each send: by how much a weight moves when it is sent.

The threshold follows the learning rate of the parameter's group: rate * tau. With a density, tau is a
quantile of what waits: the one with this part of the weights above it, found in a sample. It needs no time to
settle, and none after the rate has changed. A threshold that is steered by the counts of earlier sends swings
once a weight has to wait for hundreds of steps: it sent 0.3 % where 0.1 % was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np

from p2psgd.ipc.layout import send_indices_max
from p2psgd.wire.codec import MAGNITUDE_MAX

Range = tuple[int, int]  # of weights: begin, end

SAMPLE: Final = 65_536  # weights, or more where fewer than SAMPLE_SENT of them would be sent
SAMPLE_SENT: Final = 64  # so the density is met to an eighth or so in each send, and on average
GOLDEN: Final = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, are even in every interval


class Steps:
    """Chooses the thresholds of one trainer with these `ranges`, by either density or tau.

    With `shrinks` the residual shrinks with a rate that falls, so that none of it is sent only because the
    threshold is smaller now. It must not where the residual counts for the model of this node, which would
    go back by as much. `xp`: the module of the arrays.
    """

    def __init__(
        self,
        ranges: Mapping[str, Range],
        *,
        density: float | None,
        tau: float | None,
        quantum: float,
        shrinks: bool = True,
        xp: ModuleType = np,
    ) -> None:
        self._shrinks, self._quantum, self._xp = shrinks, quantum, xp
        self._ranges = ranges
        self._ends = [end for _, end in ranges.values()]
        self._tau = tau
        self._sample: _Sample | None = None
        if density is not None:
            # No more than half of what a send holds: what exceeds it would wait, and be more with each step.
            weights = self._ends[-1]
            self._sample = _Sample(weights, min(density, send_indices_max(weights) / 2 / weights), xp)
        self._rates: list[float] | None = None  # at which all that waits was made
        self._taken: list[float] | None = None  # and what is being sent

    @property
    def rates(self) -> Sequence[float]:
        """The rate of each parameter in the last mini-batch; where that was 0, the one before."""
        return self._rates or []

    def restore(self, rates: Sequence[float]) -> None:
        """Continue from an earlier start; empty `rates` mean a residual of an unknown rate."""
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
        self._taken = now
        tau = self._tau if self._sample is None else self._sample.quantile(delta, residual, self._ends, now)
        assert tau is not None
        steps = {name: self._step(rate * tau) for name, rate in zip(self._ranges, now, strict=True)}
        return steps if len(set(steps.values())) > 1 else next(iter(steps.values()))

    def sent(self) -> None:
        """Note that the last change is in the residual."""
        self._rates = self._taken

    def _step(self, change: float) -> int:
        """Return a change of a weight in quanta, 1 to MAGNITUDE_MAX; of one that is not finite, the most.

        It is rounded up, so that of weights that all wait for as much, as after the first step of Adam, none
        is sent rather than all.
        """
        return max(1, math.ceil(min(change / self._quantum, MAGNITUDE_MAX)))


class _Sample:
    """Finds in a sample of P weights what the largest part of them, `density`, is above."""

    def __init__(self, weights: int, density: float, xp: ModuleType) -> None:
        self._weights, self._density, self._xp = weights, density, xp
        size = min(weights, max(SAMPLE, math.ceil(SAMPLE_SENT / density)))
        self._above = max(1, round(density * size))
        self._places: Any = None  # all weights, if there are few
        if size < weights:
            self._places = (xp.arange(size, dtype=np.float64) * GOLDEN % 1 * weights).astype(np.int64)
        self._shift = 0

    def quantile(self, delta: Any, residual: Any, ends: Sequence[int], rates: Sequence[float]) -> float:
        """Return it of |residual + delta| (P,), in units of the rate of each parameter, which ends at `ends`;
        infinity if there is a NaN.
        """
        xp = self._xp
        if self._places is None:
            places = xp.arange(self._weights)
            waiting = abs(residual + delta)
        else:
            # Another sample each time, so that one that is above or below on average stays so for one send.
            self._shift = (self._shift + int(GOLDEN * GOLDEN * self._weights)) % self._weights
            places = (self._places + self._shift) % self._weights
            waiting = abs(residual[places] + delta[places])
        if len(set(rates)) > 1:
            waiting = waiting / xp.asarray(rates)[xp.searchsorted(xp.asarray(ends), places, side="right")]
            scale = 1.0
        else:
            scale = rates[0]
        edge = len(waiting) - self._above - 1
        found = float(xp.partition(waiting, edge)[edge]) if edge >= 0 else 0.0
        if not found:  # fewer have changed at all: send what is largest of these
            changed = waiting[waiting > 0]
            found = float(changed.mean()) / 2 if len(changed) else 0.0
        return found / scale if math.isfinite(found) else math.inf
