"""p2psgd beside what people would otherwise take: PyTorch DDP over gloo with whole, half and low-rank
gradients, and hivemind. All train the same net on the same frames of speech, on hosts with shaped links.

    python -m benchmarks.rivals [--only PATTERN] [--short]

needs root and a quiet machine; it writes docs/explanation/rivals.*, and goes on where it was interrupted.
`make rivals` sets up its environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Setting = Mapping[str, Any]  # what a way is tuned by, `rate` and its own

HOSTS: Final = 4
BATCH: Final = 64  # of a host
WARM_UP: Final = 20_000  # samples of all hosts, over which the rate rises from a tenth: the same for all ways
TARGET: Final = 2.2  # nats on held-out frames; chance is 5.3
FOUR_PASSES: Final = 1.84  # where plain SGD ends after so many, about
SLOWED: Final = 0.25  # of its share of the processors
FAULTY: Final = HOSTS - 1  # the host that is slowed or killed; DDP's and hivemind's meeting point is host 0
KILL_AFTER_S: Final = 8.0
AFTER_KILL_S: Final = 120.0  # torchrun may take 30 s to end processes, and more to meet again
LAN_MBIT: Final = 100


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A way to train. `module` is run on each host; the search picks the best of `settings`, and among those
    that are as good the first is taken.
    """

    name: str
    label: str
    module: str
    settings: tuple[Setting, ...]
    options: Mapping[str, Any]

    @property
    def search_mbit(self) -> int:
        """The links to search with: where settings differ by more than the rate they differ in bytes as well,
        and which is best is not to be seen where bytes cost nothing.
        """
        return LAN_MBIT if any(len(setting) > 1 for setting in self.settings) else 0


def _rates(*rates: float, **others: Any) -> tuple[Setting, ...]:
    return tuple({"rate": rate, **others} for rate in rates)


_MEAN: Final = (0.15, 0.3, 0.6, 0.9)  # for the mean gradient of all hosts' batches
_POWERSGD: Final = tuple(
    # Whole gradients come first, for so many steps: 2 is the least that PyTorch takes; its documentation
    # recommends as many as those in which the rate rises.
    {"rate": rate, "whole_steps": steps}
    for steps, rates in ((2, (0.075, *_MEAN)), (10, _MEAN), (WARM_UP // (HOSTS * BATCH), (0.6,)))
    for rate in rates
)
# hivemind's own guide: very large batches, and 3 to 5 s of matchmaking in small local runs, less where
# latency is low. All hosts together use about 10,000 samples a second.
_HIVEMIND: Final = (
    *_rates(0.15, updates="local", every=131_072, matchmaking_s=3.0),
    *_rates(0.075, 0.15, 0.3, 0.6, updates="local", every=65_536, matchmaking_s=3.0),
    *_rates(0.15, 0.3, updates="local", every=32_768, matchmaking_s=3.0),
    *_rates(0.3, updates="local", every=16_384, matchmaking_s=1.0),
    *_rates(1.2, updates="global", every=2048, matchmaking_s=1.0),
)
_MEAN_RATES: Final = _rates(*_MEAN)
_SUM_RATES: Final = (  # for a host's own: changes add up
    *_rates(0.1, 0.15, 0.2, density=0.005),
    *_rates(0.1, 0.15, 0.2, density=0.01),  # what p2psgd.torch takes if nothing is said
)

WAYS: Final = {
    way.name: way
    for way in (
        Way("ddp", "DDP, float32", "ddp", _MEAN_RATES, {"hook": "none"}),
        Way("ddp-fp16", "DDP, fp16 hook", "ddp", _MEAN_RATES, {"hook": "fp16"}),
        Way("powersgd-1", "DDP, PowerSGD rank 1", "ddp", _POWERSGD, {"hook": "powersgd", "rank": 1}),
        Way("powersgd-4", "DDP, PowerSGD rank 4", "ddp", _POWERSGD, {"hook": "powersgd", "rank": 4}),
        Way("hivemind", "hivemind, 8 bits", "hivemind_way", _HIVEMIND, {}),
        Way("p2psgd", "p2psgd, async", "p2psgd_way", _SUM_RATES, {"mode": "async"}),
        Way("p2psgd-ring", "p2psgd, sparse ring", "p2psgd_way", _SUM_RATES, {"mode": "ring"}),
        Way(
            "p2psgd-dense",
            "p2psgd, dense ring",
            "p2psgd_way",
            _MEAN_RATES,
            {"mode": "ring", "payload": "dense"},
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Case:
    """A run. `fault`: "", "slow" or "killed"; `mbit` 0: links are as fast as this machine."""

    way: Way
    mbit: int
    seed: int = 1
    fault: str = ""
    limit_s: float = 180.0

    @property
    def name(self) -> str:
        return f"{self.way.name} {self.mbit} {self.fault or 'all'} {self.seed}"


def _cases() -> tuple[Case, ...]:
    """The most telling first, so that an interrupted table says something."""
    limits = {LAN_MBIT: 300.0, 1000: 180.0, 10: 150.0}
    plain = [
        Case(way, mbit, seed, limit_s=limit_s)
        for seed in (1, 2)
        for mbit, limit_s in limits.items()
        for way in WAYS.values()
    ]
    # At 1 Gbit/s all wait for processors, at 100 Mbit/s DDP's whole gradients would hide a slow one.
    slow = [Case(way, 1000, fault="slow", limit_s=120.0) for way in WAYS.values()]
    killed = [
        Case(way, LAN_MBIT, fault="killed", limit_s=KILL_AFTER_S + AFTER_KILL_S) for way in WAYS.values()
    ]
    return (*plain[: 3 * len(WAYS)], *slow, *killed, *plain[3 * len(WAYS) :])


CASES: Final = _cases()
