"""Chooses the threshold of each parameter for each send: by how much a weight moves when it is sent.

The threshold follows the learning rate of the parameter's group: rate * tau. With a density, tau is a
quantile of what waits: the one with this part of the weights above it, found in a sample. It needs no time to
settle, and none after the rate has changed. A threshold that is steered by the counts of earlier sends swings
once a weight has to wait for hundreds of steps: it sent 0.3 % where 0.1 % was asked for.

Of several optimizers each has a tau of its own, since the same rate moves weights by different amounts: by
about the rate with Adam, and by a tenth of it in a matrix of 128 columns with Muon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, TypeVar

import numpy as np

from p2psgd.ipc.layout import send_indices_max
from p2psgd.wire.codec import MAGNITUDE_MAX

Range = tuple[int, int]  # of weights: begin, end
_Value = TypeVar("_Value")

SAMPLE: Final = 65_536  # weights, or more where fewer than SAMPLE_SENT of them would be sent
SAMPLE_SENT: Final = 64  # so the density is met to an eighth or so in each send, and on average
GOLDEN: Final = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, are even in every interval


class Steps:
    """Chooses the thresholds of one trainer with these `ranges`, by either density or tau.

    `owners`: the optimizer of each range, counted from 0; None: there is one.

    With `shrinks` the residual shrinks with a rate that falls, so that none of it is sent only because the
    threshold is smaller now. It must not where the residual counts for the model of this node, which would
    go back by as much. `xp`: the module of the arrays.
    """

    def __init__(
        self,
        ranges: Mapping[str, Range],
        owners: Sequence[int] | None = None,
        *,
        density: float | None,
        tau: float | None,
        quantum: float,
        shrinks: bool = True,
        xp: ModuleType = np,
    ) -> None:
        self._shrinks, self._quantum, self._xp = shrinks, quantum, xp
        self._ranges = ranges
        self._owners = [0] * len(ranges) if owners is None else owners
        self._tau = tau
        self._samples: dict[int, _Sample] = {}  # by optimizer
        if density is not None:
            # No more than half of what a send holds: what exceeds it would wait, and be more with each step.
            weights = max(end for _, end in ranges.values())
            density = min(density, send_indices_max(weights) / 2 / weights)
            self._samples = {
                owner: _Sample(self._of(owner, ranges.values()), density, xp) for owner in set(self._owners)
            }
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
        before, now = self._follow(rates)
        for (begin, end), rate, last in zip(self._ranges.values(), now, before, strict=True):
            if self._shrinks and rate < last:
                delta[begin:end] += residual[begin:end] * np.float32(rate / last - 1)
        return self.choose(lambda places: residual[places] + delta[places], rates)

    def choose(self, waiting: Callable[[Any], Any], rates: Sequence[float]) -> int | dict[str, int]:
        """Return the same where nothing shrinks; `waiting(places)` are the changes at these places that were
        not sent.
        """
        self._taken = now = self._follow(rates)[1]
        taus = {
            owner: sample.quantile(waiting, self._of(owner, now)) for owner, sample in self._samples.items()
        }
        steps = {
            name: self._step(rate * (self._tau if self._tau is not None else taus[owner]))
            for name, rate, owner in zip(self._ranges, now, self._owners, strict=True)
        }
        return steps if len(set(steps.values())) > 1 else next(iter(steps.values()))

    def sent(self) -> None:
        """Note that the last change is in the residual."""
        self._rates = self._taken

    def _follow(self, rates: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return the rates before, and now, where one of 0 is the one before."""
        before = self._rates or [rate or 1.0 for rate in rates]
        return before, [rate or last for rate, last in zip(rates, before, strict=True)]

    def _of(self, owner: int, values: Iterable[_Value]) -> list[_Value]:
        """Return those of the parameters of an optimizer."""
        return [value for value, its in zip(values, self._owners, strict=True) if its == owner]

    def _step(self, change: float) -> int:
        """Return a change of a weight in quanta, 1 to MAGNITUDE_MAX; of one that is not finite, the most.

        It is rounded up, so that of weights that all wait for as much, as after the first step of Adam, none
        is sent rather than all.
        """
        return max(1, math.ceil(min(change / self._quantum, MAGNITUDE_MAX)))


class _Sample:
    """Finds in a sample of the weights of some ranges what the largest part of them, `density`, is above."""

    def __init__(self, ranges: Sequence[Range], density: float, xp: ModuleType) -> None:
        self._xp = xp
        begins, ends = (xp.asarray(each) for each in zip(*ranges, strict=True))
        self._ends = xp.cumsum(ends - begins)  # of the ranges, one after the other
        self._offsets = begins - (self._ends - (ends - begins))  # from there to the weight's place
        self._gaps = bool(self._offsets.any())
        self._weights = weights = int(self._ends[-1])
        size = min(weights, max(SAMPLE, math.ceil(SAMPLE_SENT / density)))
        self._above = max(1, round(density * size))
        if size < weights:
            self._places = (xp.arange(size, dtype=np.float64) * GOLDEN % 1 * weights).astype(np.int64)
            self._places.sort()  # so that what lies together is fetched together
        else:
            self._places = xp.arange(weights)
        self._shift = 0

    def quantile(self, waiting_at: Callable[[Any], Any], rates: Sequence[float]) -> float:
        """Return it of |waiting_at(places)|, in units of the rate of each range; infinity if there is a
        NaN.
        """
        xp = self._xp
        # Another sample each time, so that one that is above or below on average stays so for one send.
        self._shift = (self._shift + int(GOLDEN * GOLDEN * self._weights)) % self._weights
        places = (self._places + self._shift) % self._weights
        scale: Any = rates[0]
        if self._gaps or len(set(rates)) > 1:
            numbers = xp.searchsorted(self._ends, places, side="right")
            places += self._offsets[numbers]
            scale = xp.asarray(rates)[numbers]
        waiting = abs(waiting_at(places)) / scale
        edge = len(waiting) - self._above - 1
        found = float(xp.partition(waiting, edge)[edge]) if edge >= 0 else 0.0
        if not found:  # fewer have changed at all: send what is largest of these
            changed = waiting[waiting > 0]
            found = float(changed.mean()) / 2 if len(changed) else 0.0
        return found if math.isfinite(found) else math.inf
