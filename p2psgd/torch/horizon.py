"""Lets an optimizer's moving averages reach back as many steps of the run as its user asked for.

A beta of 0.9 averages over the last ten steps. When N nodes train, ten steps of one node are 10 N of the run,
and the other nodes' changes arrive late, which acts like momentum itself (Mitliagkas et al. 2016, Asynchrony
begets momentum). With beta**N the node's average again covers ten steps of the run.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping
from typing import Any, Final

import torch

INTERVAL: Final = 10  # own steps
INTERVAL_MAX: Final = 50  # a peer that sends none of its steps for so long is not counted
INTERVALS_SETTLED: Final = 5  # while nodes start, they do so one after the other
INTERVALS_MAX: Final = 10  # so the ratio is that of the last 100 own steps, or a few more
# Classes whose betas are the weights of the past in two averages, and whose first steps are like all others:
# those of RAdam decide whether it adapts at all, and some, such as Adan's, are weights of the present.
ADAM_LIKE: Final = {"Adam", "AdamW", "NAdam", "Adamax", "FusedAdam", "Adam8bit", "AdamW8bit", "Lion", "LAMB"}
RATIO_PER_NODE: Final = 4  # a node so much slower than the others is helped no further


class Pace:
    """Measures how many steps the run makes for each step of this node: about N, if all are equally fast.

    `ratio` is from 1 on: the number that was expected, then that of the intervals so far. It is `measured`
    once nodes had the time to start.
    """

    def __init__(self, expected: float) -> None:
        self.ratio = expected
        self.measured = False
        self._last: tuple[int, dict[int, int]] | None = None  # own steps, and those of each peer
        self._training: set[int] = set()  # peers, in the last interval
        self._rates: collections.deque[tuple[float, int]] = collections.deque(maxlen=INTERVALS_MAX)

    def note(self, own: int, peers: Mapping[int, int]) -> None:
        """Take in the number of own steps so far, and those of each peer.

        An interval is longer while a peer that trains has sent nothing in it: its next update may hold many
        steps. The ratio is the median of the last intervals, since what peers do while this node evaluates,
        saves or is away comes all at once; and at most RATIO_PER_NODE for each node that was seen to train in
        them.
        """
        last = self._last
        if last is None:
            self._last = own, dict(peers)
            return
        passed = own - last[0]
        made = {node: steps - last[1].get(node, steps) for node, steps in peers.items()}
        training = {node for node, steps in made.items() if steps > 0}
        if passed < INTERVAL or (passed < INTERVAL_MAX and self._training - training):
            return
        self._last, self._training = (own, dict(peers)), training
        self._rates.append((sum(made.values()) / passed, len(training)))
        if len(self._rates) > 1:
            nodes = 1 + max(count for _, count in self._rates)
            rate = statistics.median(rate for rate, _ in self._rates)
            self.ratio = min(1 + rate, RATIO_PER_NODE * nodes)
            self.measured = len(self._rates) >= INTERVALS_SETTLED


class Horizon:
    """Shortens the moving averages of an optimizer for the time of each step; between steps they are as the
    user gave them, for schedulers and `state_dict`.

    Known are the `betas` of Adam and its kin, and the momentum of plain SGD and of Muon.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._given: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []

    @property
    def applies(self) -> bool:
        """True if the optimizer has anything to shorten."""
        return any(self._averages(group) for group in self._optimizer.param_groups)

    def shorten(self, ratio: float) -> None:
        """Raise each beta and momentum to the power of `ratio`, from 1 on.

        The rate of SGD is multiplied by (1 - momentum**ratio) / (1 - momentum), so that a gradient moves the
        weights as far in all as it would with the momentum that was given. Adam divides by a like sum itself,
        and Muon makes every change equally large.
        """
        self.restore()
        for group in self._optimizer.param_groups:
            found = self._averages(group)
            if "betas" in found:
                found["betas"] = tuple(beta**ratio for beta in found["betas"])
            if "momentum" in found:
                momentum = found["momentum"]
                found["momentum"] = momentum**ratio
                if type(self._optimizer) is torch.optim.SGD:
                    found["lr"] = group["lr"] * ((1 - momentum**ratio) / (1 - momentum))
            self._given.append((group, {key: group[key] for key in found}, found))
            group.update(found)

    def restore(self) -> None:
        """Give each group back what it had, but for what was set anew since; harmless without a step."""
        given, self._given = self._given, []
        for group, before, installed in given:
            for key, value in before.items():
                if group.get(key) is installed[key]:
                    group[key] = value

    def describe(self, ratio: float) -> str:
        """Return one sentence on what the first group's averages are with this ratio."""
        found = next(found for group in self._optimizer.param_groups if (found := self._averages(group)))
        parts = [
            f"{name} {_shown(value)} {'act' if name == 'betas' else 'acts'} as {_shown(value, ratio)}"
            for name, value in found.items()
        ]
        return (
            f"the run makes {ratio:.1f} steps for each of this node, so {' and '.join(parts)} here;"
            " attach(run_horizon=False) leaves them as they are"
        )

    def _averages(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a group is shortened: plain numbers, and momentum only where its part in the size of
        a step is known.
        """
        found: dict[str, Any] = {}
        betas, momentum = group.get("betas"), group.get("momentum")
        known = any(kind.__name__ in ADAM_LIKE for kind in type(self._optimizer).__mro__)
        if known and isinstance(betas, tuple | list) and all(isinstance(beta, float) for beta in betas):
            found["betas"] = tuple(betas)
        sized = type(self._optimizer) is torch.optim.SGD or type(self._optimizer).__name__ == "Muon"
        if sized and isinstance(momentum, float) and 0 < momentum < 1:
            found["momentum"] = momentum
        return found


def _shown(value: Any, ratio: float = 1.0) -> str:
    if isinstance(value, float):
        return f"{value**ratio:.3g}"
    return f"({', '.join(_shown(each, ratio) for each in value)})"
