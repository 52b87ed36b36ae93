"""Lets an optimizer's moving averages reach back as many steps of the run as its user asked for.

A beta of 0.9 averages over the last ten steps. When N nodes train, ten steps of one node are 10 N of the run,
and the other nodes' changes arrive late, which acts like momentum itself (Mitliagkas et al. 2016, Asynchrony
begets momentum). With beta**N the node's average again covers ten steps of the run.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Final

import torch

SAMPLE_EVERY: Final = 10  # own steps
SAMPLES_MAX: Final = 11  # so the ratio is that of the last 100 own steps


class Pace:
    """Measures how many steps the run makes for each step of this node: about N, if all are equally fast.

    `ratio` is from 1 on; until it is `measured` it is the number that was expected.
    """

    def __init__(self, expected: float) -> None:
        self.ratio = expected
        self.measured = False
        self._samples: collections.deque[tuple[int, int]] = collections.deque(maxlen=SAMPLES_MAX)

    def note(self, own: int, peers: Mapping[int, int]) -> None:
        """Take in the number of own steps so far, and those of each peer."""
        if self._samples and own - self._samples[-1][0] < SAMPLE_EVERY:
            return
        self._samples.append((own, sum(peers.values())))
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        if len(self._samples) > 2:  # the first tells how the others began
            self.ratio = 1 + max(0, after - before) / (last - first)
            self.measured = True


class Horizon:
    """Shortens the moving averages of an optimizer for the time of each step; between steps they are as the
    user gave them, for schedulers and `state_dict`.

    Known are `betas` (Adam and its kin) and `momentum` (SGD, RMSprop, Muon), where they are plain numbers.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._linear = type(optimizer) is torch.optim.SGD
        self._given: list[dict[str, Any]] = []  # what each group had before this step

    @property
    def applies(self) -> bool:
        """True if the optimizer has anything to shorten."""
        return any(_averages(group) for group in self._optimizer.param_groups)

    def shorten(self, ratio: float) -> None:
        """Raise each beta and momentum to the power of `ratio`, from 1 on.

        The rate of plain SGD is multiplied by (1 - momentum**ratio) / (1 - momentum), so that a gradient
        moves the weights as far in all as it would with the momentum that was given; Adam divides by a like
        sum itself.
        """
        self.restore()
        for group in self._optimizer.param_groups:
            found = _averages(group)
            shortened: dict[str, Any] = {}
            if "betas" in found:
                shortened["betas"] = tuple(beta**ratio for beta in found["betas"])
            if "momentum" in found:
                momentum = found["momentum"]
                shortened["momentum"] = momentum**ratio
                if self._linear and isinstance(group["lr"], float) and momentum < 1:
                    shortened["lr"] = group["lr"] * (1 - momentum**ratio) / (1 - momentum)
            self._given.append({key: group[key] for key in shortened})
            group.update(shortened)

    def describe(self, ratio: float) -> str:
        """Return one sentence on what the first group's averages are with this ratio."""
        found = _averages(self._optimizer.param_groups[0])
        parts = [
            f"{name} {_shown(value)} {'act' if name == 'betas' else 'acts'} as {_shown(value, ratio)}"
            for name, value in found.items()
        ]
        return (
            f"the run makes {ratio:.1f} steps for each of this node, so {' and '.join(parts)} here;"
            " attach(run_horizon=False) leaves them as they are"
        )

    def restore(self) -> None:
        """Give each group back what it had; harmless without a step before."""
        for group, given in zip(self._optimizer.param_groups, self._given, strict=False):
            group.update(given)
        self._given = []


def _shown(value: Any, ratio: float = 1.0) -> str:
    if isinstance(value, float):
        return f"{value**ratio:.3g}"
    return f"({', '.join(_shown(each, ratio) for each in value)})"


def _averages(group: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    betas, momentum = group.get("betas"), group.get("momentum")
    if isinstance(betas, tuple | list) and all(isinstance(beta, float) for beta in betas):
        found["betas"] = betas
    if isinstance(momentum, float) and momentum > 0:
        found["momentum"] = momentum
    return found
