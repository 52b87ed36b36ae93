"""Compare the predictions of `python -m benchmarks.plan` with paced nodes: real daemons on a LAN of network
namespaces, whose trainers wait for a fixed time where others compute.

    python -m benchmarks.scaling [--only NAME] [--dry] [--seconds S]

needs root and a quiet machine; it prints measured beside predicted and writes docs/explanation/scaling.*. All
nodes share the processors of this machine: a prediction is told how many there are for each of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.scaling.model import Prediction, Setting, Way, predict

FAILURE_TIMEOUT_S: Final = (
    20.0  # as over a wide area: no checkpoint of many nodes at once on this machine's one disk
)
LATENCY_S: Final = 50e-6  # from one namespace to another
PAPER_STEP_S: Final = 0.15
LONG_STEP_S: Final = 0.5
PAPER_DENSITY: Final = 1 / 850
WANTED_RATIO: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`wanted`: whether N nodes are to be at least WANTED_RATIO of N times one."""

    name: str
    way: Way
    nodes: int
    weights: int
    link_mbit: float
    computing_s: float = PAPER_STEP_S
    density: float = PAPER_DENSITY
    wanted: bool = False

    @property
    def setting(self) -> Setting:
        return Setting(
            weights=self.weights,
            nodes=self.nodes,
            link_bit_per_s=1e6 * self.link_mbit,
            computing_s=self.computing_s,
            density=self.density,
            latency_s=LATENCY_S,
            failure_timeout_s=FAILURE_TIMEOUT_S,
            cores=(os.cpu_count() or 1) / self.nodes,
        )

    @property
    def alone(self) -> Case:
        """Return the case of the same trainer on one node, asynchronous."""
        return replace(self, name=f"one node, {self.weights / 1e6:g} M", way=Way.ASYNC, nodes=1, wanted=False)

    def predict(self) -> Prediction:
        return predict(self.way, self.setting)


def _curve(name: str, way: Way, link_mbit: float, *counts: int, wanted: int = 0) -> list[Case]:
    """Return a case for each number of nodes. 64 nodes compute for longer: their own work in a step keeps two
    processors busy for 200 ms.
    """
    return [
        Case(
            name=f"{name}-{nodes}",
            way=way,
            nodes=nodes,
            weights=1_000_000,
            link_mbit=link_mbit,
            computing_s=PAPER_STEP_S if nodes < 64 else LONG_STEP_S,
            wanted=nodes == wanted,
        )
        for nodes in counts
    ]


CASES: Final = (
    Case(name="paper-8", way=Way.ASYNC, nodes=8, weights=14_600_000, link_mbit=1000, wanted=True),
    Case(name="paper-32", way=Way.ASYNC, nodes=32, weights=1_000_000, link_mbit=70, wanted=True),
    *_curve("async", Way.ASYNC, 70, 4, 8, 16),
    *_curve("narrow", Way.ASYNC, 2, 4, 8, 16, 32),
    *_curve("owners", Way.OWNERS, 70, 4, 8, 16, 32, 64, wanted=32),
    *_curve("narrow-owners", Way.OWNERS, 2, 4, 8, 16, 32, 64, wanted=32),
    *_curve("rounds", Way.ROUNDS, 70, 4, 8, 16, 32),
    *_curve("sparse", Way.SPARSE_RING, 70, 4, 8, 16, 32),
    *_curve("dense", Way.DENSE_RING, 200, 4, 8, 16),
    Case(name="small", way=Way.ASYNC, nodes=3, weights=20_000, link_mbit=70, computing_s=0.05),
)
