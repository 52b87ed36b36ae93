"""Draws a run in mode `owners` from a seed: owners are killed, cut off, removed, and come back."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from p2psgd.core.owners import owners
from p2psgd.wire.mode import Mode
from p2psgd.wire.rule import parse_rule
from tests.sim.faults import (
    Fault,
    FreshDisk,
    Outcast,
    Partition,
    Pause,
    PublishAmbush,
    TrainerAway,
    TrainerSlow,
    Unlinked,
)
from tests.sim.owners.work import OwnersWork
from tests.sim.ring.work import RingWork
from tests.sim.scenario import (
    FATES,
    KINDS,
    Scenario,
    draw_fault,
    draw_late_starts,
    draw_log,
    draw_removal_for_good,
)

NODES_MAX: Final = 6
FAULTS_MAX: Final = 10
PLENTY: Final = OwnersWork(owners.PENDING_MAX, owners.PENDING_BYTES_MAX, owners.REDEALT_BYTES_MAX)
RULES: Final = ("sum", "sum", "sum", "adagrad", "adamw", "nesterov")  # of calm runs in rounds
OWNERS_KINDS: Final = (
    *("crash", "crash", "fresh", "stop", "stop", "pause", "pause", "cut", "partition"),
    *("remove", "remove", "reset", "publish", "publish", "publish", "publish"),
)
LOG_ENTRIES: Final = 8, 15, 30


def draw_owners_scenario(seed: int, *, nodes: int | None = None) -> Scenario:
    """The scenario of a seed; `nodes` overrules how many it has."""
    if Random(f"{seed} owners rounds").random() < 0.5:
        return _draw_rounds(seed, nodes)
    chance = Random(f"{seed} owners scenario")
    size = chance.randint(2, NODES_MAX)
    size = size if nodes is None else nodes
    chaos_s = chance.uniform(40.0, 100.0)
    weights = chance.randint(50, 300)
    timeout_s = chance.choice((1.0, 2.0, 2.0, 5.0))
    return Scenario(
        seed=seed,
        nodes=size,
        coordinates=weights,
        two_nodes=chance.choice(("stall", "lower-id")),
        failure_timeout_s=timeout_s,
        chaos_s=chaos_s,
        work_s=chance.choice((0.0, 0.0, 10.0)),
        rates=tuple(4.0 ** chance.uniform(-2.0, 1.0) for _ in range(size)),  # 1/16 to 4 a second
        indices_max=chance.randint(1, min(weights, 30)),
        credit_bytes=chance.choice((800, 3000, 20_000, 1 << 20)),
        latency_s=10.0 ** chance.uniform(-3.3, -1.3),  # 0.5 to 50 ms
        jitter_s=10.0 ** chance.uniform(-4.0, -1.3),
        bytes_per_s=10.0 ** chance.uniform(4.0, 8.0),
        faults=_draw_faults(chance, size, chaos_s, timeout_s),
        owners=_draw_work(chance),
    )


def _draw_rounds(seed: int, nodes: int | None) -> Scenario:
    """A run in rounds; a third of them calm: but for short stops of nodes nothing happens, and all of it must
    be as if it had been computed in one place.
    """
    chance = Random(f"{seed} owners scenario in rounds")
    size = chance.randint(2, NODES_MAX)
    size = size if nodes is None else nodes
    calm = chance.random() < 0.33
    chaos_s = chance.uniform(20.0, 40.0) if calm else chance.uniform(40.0, 100.0)
    weights = chance.randint(1, 300)
    timeout_s = chance.choice((1.0, 2.0, 2.0, 5.0))
    slow = 0.5 if calm else 2.5
    step_s = tuple(chance.uniform(0.05, slow) * timeout_s for _ in range(size))
    faults: list[Fault] = []
    if calm:
        for at in sorted(chance.uniform(1.0, chaos_s) for _ in range(chance.randint(0, 4))):
            faults.append(Pause(at, chance.randint(1, size), chance.uniform(0.1, 0.5) * timeout_s))
    else:
        faults += _draw_faults(chance, size, chaos_s, timeout_s)
        for at in sorted(chance.uniform(1.0, chaos_s) for _ in range(chance.randint(0, 6))):
            node, for_s = chance.randint(1, size), chance.choice((0.3, 3.0, 30.0)) * timeout_s
            if chance.random() < 0.5:
                faults.append(TrainerAway(at, node, for_s))
            else:
                faults.append(TrainerSlow(at, node, for_s, chance.choice((2.0, 10.0, 60.0)) * timeout_s))
    if not calm and chance.random() < 0.15:  # the others must go on without one, though nothing else happens
        chaos_s, timeout_s = 80.0, 1.0
        step_s = tuple(min(each, 1.0) for each in step_s)
        faults = [TrainerSlow(5.0, chance.randint(1, size), 80.0, 100.0)]
    latency = (-3.3, -2.0) if calm else (-3.3, -1.3)
    rule = Random(f"{seed} owners rule").choice(RULES) if calm else "sum"
    mode = Mode(owners=True, rounds=True, rule=parse_rule(rule))
    return Scenario(
        seed=seed,
        nodes=size,
        coordinates=weights,
        two_nodes=chance.choice(("stall", "lower-id")),
        failure_timeout_s=timeout_s,
        chaos_s=chaos_s,
        work_s=0.0 if calm else 10.0,
        rates=tuple(1.0 / each for each in step_s),
        indices_max=chance.randint(1, min(weights, 30)),
        credit_bytes=chance.choice((800, 3000, 20_000, 1 << 20)),
        latency_s=10.0 ** chance.uniform(*latency),
        jitter_s=10.0 ** chance.uniform(-4.0, -2.0 if calm else -1.3),
        bytes_per_s=10.0 ** chance.uniform(6.0 if calm else 4.0, 8.0),
        faults=tuple(faults),
        owners=OwnersWork(
            owners.PENDING_MAX,
            owners.PENDING_BYTES_MAX,
            owners.REDEALT_BYTES_MAX,
            RingWork(mode.word, step_s, frozenset(), (), 0, rests=True),
            calm,
        ),
    )


def _draw_work(chance: Random) -> OwnersWork:
    """In one run of three contributors keep so little that trainers wait or contributions are given up; in
    most some members own nothing, and some updates are relayed.
    """
    work = PLENTY
    if chance.random() >= 0.67:
        pending = chance.choice((4000, 8000))
        work = OwnersWork(chance.choice((4, 1000)), pending_bytes_max=pending, redealt_bytes_max=pending // 4)
    return replace(work, owners_min=chance.choice((1, 2, 3, 4, NODES_MAX)), fan_out=chance.choice((1, 2, 4)))


def _draw_faults(chance: Random, nodes: int, chaos_s: float, timeout_s: float) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    if chance.random() < 0.75:
        entries = chance.choice(LOG_ENTRIES)
        faults += [draw_log(chance, node, entries) for node in range(1, nodes + 1)]
    if nodes > 3 and chance.random() < 0.1:
        faults += [Unlinked(*sorted(chance.sample(range(2, nodes + 1), 2)))]
    outcasts = chance.sample(range(2, nodes + 1), chance.randint(0, (nodes - 1) // 2))
    faults += [Outcast(node, chance.choice(FATES), friend=1) for node in outcasts]
    if chance.random() < 0.2:
        faults += draw_late_starts(chance, nodes, chaos_s)
    kinds = KINDS + OWNERS_KINDS
    for when in sorted(chance.uniform(1.0, chaos_s) for _ in range(chance.randint(0, FAULTS_MAX))):
        kind = chance.choice(kinds)
        if kind == "publish":
            faults.append(_draw_ambush(chance, when, nodes, timeout_s))
        else:
            faults.append(draw_fault(chance, (kind,), when, nodes, chaos_s))
    if nodes > 3 and chance.random() < 0.35:
        faults += _draw_snapshots(chance, nodes, chaos_s)
    if chance.random() < 0.1:
        faults += draw_removal_for_good(chance, nodes, chaos_s)
    return tuple(faults)


def _draw_ambush(chance: Random, at: float, nodes: int, timeout_s: float) -> PublishAmbush:
    """The one that has the last update is hidden until the others have given the dead owner up, or not."""
    owner, witness = chance.sample(range(1, nodes + 1), 2)
    hidden_s = chance.uniform(0.0, 12.0) * timeout_s
    back_after_s = chance.choice((0.1, 2.0, 15.0)) * timeout_s
    return PublishAmbush(at, owner, witness, hidden_s, back_after_s)


def _draw_snapshots(chance: Random, nodes: int, chaos_s: float) -> list[Fault]:
    """An owner is killed while a contributor is away for so long that it is evicted; meanwhile another node
    comes back by a snapshot, from which the contributor's own is made: the owner's updates are in no log.
    """
    contributor, donor, owner = chance.sample(range(1, nodes + 1), 3)
    begin, unit_s = 5.0, (chaos_s - 6.0) / 22
    return [
        *(draw_log(chance, node, min(LOG_ENTRIES)) for node in range(1, nodes + 1)),
        Partition(begin, (donor,), 8.0 * unit_s),
        Partition(begin + chance.uniform(2.0, 6.0) * unit_s, (contributor,), 15.0 * unit_s),
        FreshDisk(begin + chance.uniform(4.0, 8.0) * unit_s, owner, 10.0 * unit_s),
    ]
