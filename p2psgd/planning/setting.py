"""What a prediction is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from p2psgd.core.timing import PATIENCE_S_MAX, PATIENCE_S_MIN
from p2psgd.errors import UsageError
from p2psgd.wire import codec

NODES_MAX: Final = 1024  # members of a view (SPEC.md, section 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run, and the machines it is to run on; UsageError for one that cannot be.

    `weights`: P. `link_bit_per_s`: what a node's link carries each way. `computing_s`: what a trainer takes
    for the gradient of one mini-batch of `samples`, on one node alone. `density`: the part of the weights
    that an update changes. `latency_s`: one way. `cores`: processors that a node has for p2psgd's own work
    beside computing; None: as many as that uses (two).
    """

    weights: int
    nodes: int
    link_bit_per_s: float
    computing_s: float
    density: float
    samples: int = 256
    latency_s: float = 250e-6
    patience_s: float = 5.0
    cores: float | None = None

    def __post_init__(self) -> None:
        _check("weights", self.weights, 1, codec.WEIGHTS_MAX)
        _check("nodes", self.nodes, 1, NODES_MAX)
        _check("samples in a mini-batch", self.samples, 1, 2**31)
        _check("seconds of patience", self.patience_s, PATIENCE_S_MIN, PATIENCE_S_MAX)
        for what, value in (("bandwidth", self.link_bit_per_s), ("time for a mini-batch", self.computing_s)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"a {what} of {value:g} predicts nothing: give one above 0")
        if not 0 < self.density <= 1:
            raise UsageError(
                f"a density of {self.density:g} is no part of the weights: give one above 0 and at most 1, "
                "such as 1/850; `p2psgd status --compression` shows that of a running node"
            )
        most = codec.indices_max(self.weights)
        if self.indices > most:
            raise UsageError(
                f"{self.density:g} of {self.weights:,} weights are {self.indices:,} indices, and an update "
                f"holds at most {most:,}: give a density of at most 1/{math.ceil(self.weights / most)}"
            )

    @property
    def link_bytes_per_s(self) -> float:
        """Each way."""
        return self.link_bit_per_s / 8

    @property
    def indices(self) -> int:
        """Of one update; at least one."""
        return max(1, round(self.weights * self.density))


def _check(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{value:,} {what} cannot be: give {least:,} to {most:,}")
