"""List the tasks, with the ways that train each and the cases that are run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from benchmarks.rivals import gpt, speech
from benchmarks.rivals.cases import HOSTS, KILL_AFTER_S, LAN_MBIT, Case, Setting, Task, Way

SEEDS: Final = (1, 2)


def _rates(*rates: float, **others: Any) -> tuple[Setting, ...]:
    return tuple({"rate": rate, **others} for rate in rates)


def _by_name(*ways: Way) -> dict[str, Way]:
    return {way.name: way for way in ways}


def _plain(ways: Iterable[Way], seed: int, limits: Mapping[int, float]) -> list[Case]:
    """Return the cases without a fault; `limits`: seconds by bandwidth, the most telling first."""
    return [Case(way, mbit, seed, limit_s=limit_s) for mbit, limit_s in limits.items() for way in ways]


# ----------------------------------------------------------------------------
# Speech: 0.8 million weights by plain SGD.

_BATCH: Final = 64
_WARM_UP: Final = 20_000
_AFTER_KILL_S: Final = 120.0  # torchrun may take 30 s to end processes, and more to meet again
_MEAN: Final = (0.15, 0.3, 0.6, 0.9)  # for the mean gradient of all hosts' batches
_POWERSGD: Final = tuple(
    # Whole gradients come first, for so many steps: 2 is the least that PyTorch takes; its documentation
    # recommends as many as those in which the rate rises.
    {"rate": rate, "whole_steps": steps}
    for steps, rates in ((2, (0.075, *_MEAN)), (10, _MEAN), (_WARM_UP // (HOSTS * _BATCH), (0.6,)))
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
# Settings that differ by more than the rate differ in bytes as well, and which is best is not to be seen
# where bytes cost nothing: those are searched at LAN_MBIT.
_SPEECH_WAYS: Final = _by_name(
    Way("ddp", "DDP, float32", "ddp", _MEAN_RATES, {"hook": "none"}),
    Way("ddp-fp16", "DDP, fp16 hook", "ddp", _MEAN_RATES, {"hook": "fp16"}),
    Way("powersgd-1", "DDP, PowerSGD rank 1", "ddp", _POWERSGD, {"hook": "powersgd", "rank": 1}, LAN_MBIT),
    Way("powersgd-4", "DDP, PowerSGD rank 4", "ddp", _POWERSGD, {"hook": "powersgd", "rank": 4}, LAN_MBIT),
    Way("hivemind", "hivemind, 8 bits", "hivemind_way", _HIVEMIND, {}, LAN_MBIT),
    Way("p2psgd", "p2psgd, async", "p2psgd_way", _SUM_RATES, {"mode": "async"}, LAN_MBIT),
    Way("p2psgd-ring", "p2psgd, sparse ring", "p2psgd_way", _SUM_RATES, {"mode": "ring"}, LAN_MBIT),
    Way(
        "p2psgd-dense", "p2psgd, dense ring", "p2psgd_way", _MEAN_RATES, {"mode": "ring", "payload": "dense"}
    ),
)


def _speech_cases() -> tuple[Case, ...]:
    """Return the most telling first, so that an interrupted table says something."""
    ways = _SPEECH_WAYS.values()
    first, second = (_plain(ways, seed, {LAN_MBIT: 300.0, 1000: 180.0, 10: 150.0}) for seed in SEEDS)
    # At 1 Gbit/s all wait for processors, at 100 Mbit/s DDP's whole gradients would hide a slow one.
    slow = [Case(way, 1000, fault="slow", limit_s=120.0) for way in ways]
    killed = [Case(way, LAN_MBIT, fault="killed", limit_s=KILL_AFTER_S + _AFTER_KILL_S) for way in ways]
    return (*first, *slow, *killed, *second)


SPEECH: Final = Task(
    name="speech",
    training=speech.SpeechTraining,
    evaluation=speech.evaluation,
    batch=_BATCH,
    clip=None,
    warm_up=_WARM_UP,
    target=2.2,  # nats on held-out frames; chance is 5.3
    snapshot_every_s=1.0,
    search_s=60.0,
    ways=_SPEECH_WAYS,
    cases=_speech_cases(),
    wanted_ratio=10.0,
    stem="rivals",
)

# ----------------------------------------------------------------------------
# A byte-level GPT: 0.5 million weights by AdamW.

# Rates are those around the best ones that benchmarks/learn found for 3,000 batches and a cosine; eight times
# the batch was given twice the rate. p2psgd has no setting but the rate. What it does depends on the links,
# so the rate is searched on links that have a limit.
_GPT_WAYS: Final = _by_name(
    Way("ddp", "DDP, float32", "ddp", _rates(1e-3, 2e-3, 4e-3), {"hook": "none"}),
    Way(
        "ddp-8",
        "DDP, float32, 8 batches accumulated",
        "ddp",
        _rates(2e-3, 4e-3, 8e-3),
        {"hook": "none", "accumulate": 8},
    ),
    Way(
        "powersgd-4",
        "DDP, PowerSGD rank 4",
        "ddp",
        _rates(1e-3, 2e-3, 4e-3, whole_steps=10),
        {"hook": "powersgd", "rank": 4},
    ),
    Way("p2psgd", "p2psgd, async", "p2psgd_way", _rates(0.5e-3, 1e-3, 2e-3), {}, LAN_MBIT),
)


def _gpt_cases() -> tuple[Case, ...]:
    """Return the most telling first; faults are for the plainest of the rivals."""
    ways = _GPT_WAYS
    # Whole gradients take 2.3 s a step at 10 Mbit/s, and 0.23 s at 100 Mbit/s.
    first, second = (
        _plain(ways.values(), seed, {LAN_MBIT: 480.0, 10: 1200.0, 1000: 240.0}) for seed in SEEDS
    )
    delayed = [
        Case(ways[name], LAN_MBIT, fault="delayed", limit_s=900.0) for name in ("p2psgd", "ddp-8", "ddp")
    ]
    slow = [Case(ways[name], 1000, fault="slow", limit_s=400.0) for name in ("p2psgd", "ddp")]
    killed = [Case(ways[name], LAN_MBIT, fault="killed", limit_s=600.0) for name in ("p2psgd", "ddp")]
    return (*first, *delayed, *slow, *killed, *second)


GPT: Final = Task(
    name="gpt",
    training=gpt.GptTraining,
    evaluation=gpt.evaluation,
    batch=4,
    clip=1.0,
    warm_up=1_600,
    target=1.8,  # nats a byte: one process gets there with 16,500 samples, in a minute or so; chance is 5.5
    snapshot_every_s=2.0,
    search_s=150.0,
    ways=_GPT_WAYS,
    cases=_gpt_cases(),
    wanted_ratio=None,
    stem="rivals_gpt",
)

TASKS: Final = {task.name: task for task in (SPEECH, GPT)}
