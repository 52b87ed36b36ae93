"""What one seed stands for: the nodes, their network, how fast they train, and all that goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.sim.closure.work import ClosureWork
from tests.sim.faults import (
    CleanStop,
    Condition,
    Crash,
    CrashInSnapshot,
    Cut,
    Deaf,
    DiskFull,
    Duplicated,
    Fault,
    FlippedBit,
    FlippedCoordinate,
    Forged,
    FreshDisk,
    LateStart,
    Lost,
    Outcast,
    Partition,
    Pause,
    PowerCut,
    Removal,
    Reset,
    SlowLink,
    SmallLog,
    Swapped,
    Timed,
    Unlinked,
)
from tests.sim.owners.work import OwnersWork
from tests.sim.ring.work import RingWork

NODES_MIN: Final = 2
NODES_MAX: Final = 7
FAULTS_MAX: Final = 16
SHARDS_MAX: Final = 20
RATE_MIN: Final = 4.0**-2.5  # updates a second: one in 32 s
ENTRY_BYTES: Final = 220  # of a usual update in a log
LASTS_S_MAX: Final = 80.0  # past the 20 s after which a silent link is closed, and long enough to fill logs
KINDS: Final = (
    *("crash", "crash", "crash", "in snapshot", "in snapshot", "fresh", "power", "stop"),
    *("pause", "pause", "cut", "cut", "one way", "partition", "partition", "deaf", "slow"),
    *("reset", "flip", "forge", "duplicate", "swap", "lose", "disk full", "memory", "remove"),
)
FATES: Final = ("dead", "dead", "deaf", "paused", "apart")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. A replica has `coordinates`, the last of which count `shards` of the data. Node i of 1..nodes
    makes `rates[i - 1]` updates a second until `chaos_s`; then the core is healed. `work_s`: once all is
    equal they train for so long again.

    `credit_bytes`: what may be on its way through a link. `bytes_per_s`, `latency_s`: of every direction.
    """

    seed: int
    nodes: int
    coordinates: int
    two_nodes: str
    failure_timeout_s: float
    chaos_s: float
    work_s: float
    rates: tuple[float, ...]
    indices_max: int
    credit_bytes: int
    latency_s: float
    jitter_s: float
    bytes_per_s: float
    faults: tuple[Fault, ...]
    ring: RingWork | None = None  # None: asynchronous
    shards: int = 0
    owners: OwnersWork | None = None  # None: another mode
    closure: ClosureWork | None = None  # None: another mode

    @property
    def in_rounds(self) -> RingWork | None:
        """How nodes train in rounds, of a ring or of owners; None: nobody waits for others."""
        return self.ring or (self.owners.rounds if self.owners is not None else None)


def draw_scenario(seed: int, *, nodes: int | None = None) -> Scenario:
    """The scenario of a seed; `nodes` overrules how many it has."""
    chance = Random(f"{seed} scenario")
    size = chance.randint(NODES_MIN, NODES_MAX)
    size = size if nodes is None else nodes
    chaos_s = chance.uniform(60.0, 180.0)
    coordinates = chance.randint(50, 300)
    return Scenario(
        seed=seed,
        nodes=size,
        coordinates=coordinates,
        two_nodes=chance.choice(("stall", "lower-id")),
        failure_timeout_s=5.0,  # the default of a real node
        chaos_s=chaos_s,
        work_s=chance.choice((0.0, 0.0, 20.0)),
        rates=tuple(4.0 ** chance.uniform(-2.5, 0.5) for _ in range(size)),  # 1/32 to 2 a second
        indices_max=chance.randint(1, min(coordinates, 30)),
        credit_bytes=chance.choice((800, 3000, 20_000, 1 << 20)),
        latency_s=10.0 ** chance.uniform(-3.3, -0.7),  # 0.5 to 200 ms
        jitter_s=10.0 ** chance.uniform(-4.0, -1.0),
        bytes_per_s=10.0 ** chance.uniform(4.0, 8.0),
        faults=_draw_faults(chance, size, chaos_s),
        shards=_draw_shards(seed),
    )


def _draw_shards(seed: int) -> int:
    """Every fourth run counts shards; drawn apart, so that the others are what they were without."""
    chance = Random(f"{seed} shards")
    return chance.randint(1, SHARDS_MAX) if chance.random() < 0.25 else 0


def _draw_faults(chance: Random, nodes: int, chaos_s: float) -> tuple[Fault, ...]:
    everybody = range(1, nodes + 1)
    conditions: list[Condition] = []
    if chance.random() < 0.75:
        frugal = everybody if chance.random() < 0.7 else [chance.randint(1, nodes)]
        entries = chance.choice((8, 15, 30, 60))
        conditions += [draw_log(chance, node, entries) for node in frugal]
    if nodes > 3 and chance.random() < 0.15:
        # All pairs of a star's leaves may be unlinked; the centre is always of the core.
        conditions += [Unlinked(*sorted(chance.sample(range(2, nodes + 1), 2)))]
    outcasts = chance.sample(range(2, nodes + 1), chance.randint(0, (nodes - 1) // 2))
    # By way of the centre, since what a member knows is passed on by those who hear it themselves.
    conditions += [Outcast(node, chance.choice(FATES), friend=1) for node in outcasts]
    if chance.random() < 0.2:
        conditions += draw_late_starts(chance, nodes, chaos_s)
    times = sorted(chance.uniform(1.0, chaos_s) for _ in range(chance.randint(0, FAULTS_MAX)))
    faults = [draw_fault(chance, KINDS, when, nodes, chaos_s) for when in times]
    if chance.random() < 0.1:
        faults += draw_removal_for_good(chance, nodes, chaos_s)
    return (*conditions, *faults)


def draw_log(chance: Random, node: int, entries: int) -> SmallLog:
    """A log of so many usual updates, with a store beyond it or without."""
    store = chance.choice((0, 0, entries * ENTRY_BYTES))
    return SmallLog(node, entries * ENTRY_BYTES, store)


def draw_late_starts(chance: Random, nodes: int, chaos_s: float) -> list[LateStart]:
    """Some come later than the others."""
    late = chance.sample(range(1, nodes + 1), chance.randint(1, nodes - 1))
    return [LateStart(node, chaos_s * chance.random() ** 2) for node in late]


def draw_removal_for_good(chance: Random, nodes: int, chaos_s: float) -> list[Removal]:
    """Of any but the centre, by way of which the others may be joined."""
    node = chance.randint(2, nodes)
    asked = chance.choice([each for each in range(1, nodes + 1) if each != node])
    return [Removal(chance.uniform(1.0, chaos_s), asked, node, forbid=True)]


def draw_fault(  # noqa: PLR0911, PLR0912 (one case a fault)
    chance: Random, kinds: Sequence[str], at: float, nodes: int, chaos_s: float
) -> Timed:
    """One of these kinds of fault, anywhere."""
    a, b = chance.sample(range(1, nodes + 1), 2)
    lasts_s = min(LASTS_S_MAX * chance.random() ** 2 + 0.05, chaos_s - at)  # most are short
    match chance.choice(kinds):
        case "crash":
            return Crash(at, a, lasts_s, damaged=chance.random() < 0.2)
        case "in snapshot":
            return CrashInSnapshot(at, a, chance.random() ** 4, lasts_s)
        case "fresh":
            return FreshDisk(at, a, lasts_s)
        case "power":
            return PowerCut(at, chance.uniform(0.1, 5.0))
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
        case "deaf":
            return Deaf(at, a, lasts_s)
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
        case "disk full":
            return DiskFull(at, a, lasts_s)
        case "memory":
            return FlippedCoordinate(at, a, chance.random(), chance.randrange(20))
        case "remove":
            return Removal(at, a, b)
        case _:
            return Swapped(at, a, b)
