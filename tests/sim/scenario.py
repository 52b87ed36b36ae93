"""What one seed stands for: the nodes, their network, how fast they train, and all that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from tests.sim.faults import (
    CleanStop,
    Crash,
    Cut,
    Duplicated,
    Fault,
    FlippedBit,
    Forged,
    Lost,
    Partition,
    Pause,
    Reset,
    SlowLink,
    SmallLog,
    Swapped,
    Unlinked,
)

NODES_MIN: Final = 3
NODES_MAX: Final = 7
LIVING_MIN: Final = 2  # so many nodes are never dead for ever
FAULTS_MAX: Final = 14
LASTS_S_MAX: Final = 32.0  # past the 20 s after which a silent link is closed
KINDS: Final = (
    *("crash", "crash", "crash", "stop", "pause", "pause", "cut", "cut", "one way", "partition"),
    *("slow", "reset", "flip", "forge", "duplicate", "duplicate", "swap", "lose", "lose"),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. Node i of 1..nodes makes `rates[i - 1]` updates a second until `chaos_s`; then all is healed.

    `credit_bytes`: what may be on its way through a link. `bytes_per_s`, `latency_s`: of every direction.
    """

    seed: int
    nodes: int
    weights: int
    patience_s: float
    chaos_s: float
    rates: tuple[float, ...]
    indices_max: int
    credit_bytes: int
    latency_s: float
    jitter_s: float
    bytes_per_s: float
    faults: tuple[Fault, ...]


def draw_scenario(seed: int, *, nodes: int | None = None) -> Scenario:
    """The scenario of a seed; `nodes` overrules how many it has."""
    chance = Random(f"{seed} scenario")
    size = chance.randint(NODES_MIN, NODES_MAX)
    size = size if nodes is None else nodes
    chaos_s = chance.uniform(20.0, 60.0)
    weights = chance.randint(50, 300)
    return Scenario(
        seed=seed,
        nodes=size,
        weights=weights,
        patience_s=5.0,  # the default of a real node
        chaos_s=chaos_s,
        rates=tuple(4.0 ** chance.uniform(-1.5, 1.0) for _ in range(size)),  # 1/8 to 4 a second
        indices_max=chance.randint(1, min(weights, 30)),
        credit_bytes=chance.choice((800, 3000, 20_000, 1 << 20)),
        latency_s=10.0 ** chance.uniform(-3.3, -0.7),  # 0.5 to 200 ms
        jitter_s=10.0 ** chance.uniform(-4.0, -1.0),
        bytes_per_s=10.0 ** chance.uniform(4.0, 8.0),
        faults=_draw_faults(chance, size, chaos_s),
    )


def _draw_faults(chance: Random, nodes: int, chaos_s: float) -> tuple[Fault, ...]:
    conditions: list[SmallLog | Unlinked] = []
    if chance.random() < 0.3:
        frugal = range(1, nodes + 1) if chance.random() < 0.3 else [chance.randint(1, nodes)]
        conditions += [SmallLog(node, chance.choice((0, 3000, 10_000))) for node in frugal]
    if chance.random() < 0.15:
        # All pairs of a star's leaves may be unlinked; the centre is never dead for ever.
        conditions += [Unlinked(*sorted(chance.sample(range(2, nodes + 1), 2)))]
    centre = {1} if conditions else set()
    mortal = sorted(set(range(1, nodes + 1)) - centre)
    doomed = chance.sample(mortal, chance.randint(0, max(0, nodes - LIVING_MIN - 1)))
    times = sorted(chance.uniform(1.0, chaos_s) for _ in range(chance.randint(0, FAULTS_MAX)))
    timed = [_draw_fault(chance, when, nodes, chaos_s) for when in times]
    ends: list[Fault] = []
    if conditions and chance.random() < 0.6:  # longer than patience, shorter than what closes a silent link
        a, b = chance.sample(range(1, nodes + 1), 2)
        at = chance.uniform(1.0, chaos_s - 9.0)
        ends.append(Cut(at, a, b, min(chance.uniform(8.0, 19.0), chaos_s - at), both=chance.random() < 0.7))
    for node in doomed:
        if chance.random() < 0.5:
            kind = CleanStop if chance.random() < 0.2 else Crash
            ends.append(kind(chance.uniform(1.0, chaos_s), node, None))
    return (*conditions, *timed, *ends)


def _draw_fault(chance: Random, at: float, nodes: int, chaos_s: float) -> Fault:  # noqa: PLR0911, PLR0912
    a, b = chance.sample(range(1, nodes + 1), 2)
    lasts_s = min(LASTS_S_MAX * chance.random() ** 2 + 0.05, chaos_s - at)  # most are short
    match chance.choice(KINDS):
        case "crash":
            return Crash(at, a, lasts_s)
        case "stop":
            return CleanStop(at, a, lasts_s)
        case "pause":
            return Pause(at, a, lasts_s)
        case "cut":
            return Cut(at, a, b, lasts_s, both=True)
        case "one way":
            return Cut(at, a, b, lasts_s, both=False)
        case "partition":
            side = chance.sample(range(1, nodes + 1), chance.randint(1, nodes - 1))
            return Partition(at, tuple(sorted(side)), lasts_s)
        case "slow":
            return SlowLink(at, a, b, lasts_s, 10.0 ** chance.uniform(1.5, 3.5))
        case "reset":
            return Reset(at, a, b)
        case "flip":
            return FlippedBit(at, a, b, chance.random())
        case "forge":
            return Forged(at, a, b)
        case "duplicate":
            return Duplicated(at, a, b, chance.randint(1, 20))
        case "lose":
            return Lost(at, a, b)
        case _:
            return Swapped(at, a, b)
