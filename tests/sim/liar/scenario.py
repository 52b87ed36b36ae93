"""What one seed of the family of liars stands for."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.sim.faults import Fault, Liar, Lie, Outcast, Removal, Unlinked
from tests.sim.liar.lies import LIES
from tests.sim.scenario import FATES, Scenario, draw_fault, draw_late_starts, draw_log

NODES_MIN: Final = 3
NODES_MAX: Final = 6
FAULTS_MAX: Final = 8
UNCOVERED_SHARE: Final = 1 / 8  # of runs: in these only crashes count
OFTEN: Final = 3  # as likely as others are lies that need other faults to show what they do
FOR_EVER_S: Final = 1e9
KINDS: Final = (  # nothing that breaks frames or memory: what is wrong with those is said of the liar alone
    *("crash", "crash", "crash", "in snapshot", "in snapshot", "fresh", "power", "stop"),
    *("pause", "cut", "cut", "one way", "partition", "deaf", "slow", "reset", "disk full", "remove"),
)


def draw_liar_scenario(seed: int, *, nodes: int | None = None) -> Scenario:
    """The scenario of a seed; `nodes` overrules how many honest ones it has at first."""
    chance = Random(f"{seed} liar scenario")
    size = chance.randint(NODES_MIN, NODES_MAX)
    size = size if nodes is None else nodes
    chaos_s = chance.uniform(60.0, 150.0)
    weights = chance.randint(50, 300)
    return Scenario(
        seed=seed,
        nodes=size,
        coordinates=weights,
        two_nodes=chance.choice(("stall", "lower-id")),
        failure_timeout_s=5.0,  # the default of a real node
        chaos_s=chaos_s,
        work_s=chance.choice((0.0, 0.0, 20.0)),
        rates=tuple(4.0 ** chance.uniform(-2.5, 0.5) for _ in range(size)),  # 1/32 to 2 a second
        indices_max=chance.randint(1, min(weights, 30)),
        credit_bytes=chance.choice((800, 3000, 20_000, 1 << 20)),
        latency_s=10.0 ** chance.uniform(-3.3, -0.7),  # 0.5 to 200 ms
        jitter_s=10.0 ** chance.uniform(-4.0, -1.0),
        bytes_per_s=10.0 ** chance.uniform(4.0, 8.0),
        faults=_draw_faults(chance, size, chaos_s),
    )


def _draw_faults(chance: Random, nodes: int, chaos_s: float) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    if chance.random() < 0.75:
        entries = chance.choice((8, 15, 30, 60))
        faults += [draw_log(chance, node, entries) for node in range(1, nodes + 1)]
    if nodes > 3 and chance.random() < 0.15:
        faults += [Unlinked(*sorted(chance.sample(range(2, nodes + 1), 2)))]
    turned = nodes > 2 and chance.random() < 0.6
    place = chance.randint(2, nodes) if turned else nodes + 1
    honest = [node for node in range(2, nodes + 1) if node != place]
    outcasts = chance.sample(honest, chance.randint(0, max(0, (nodes - 1) // 2 - turned)))
    faults += [Outcast(node, chance.choice(FATES), friend=1) for node in outcasts]
    if chance.random() < 0.2:
        faults += draw_late_starts(chance, nodes, chaos_s)
    times = sorted(chance.uniform(1.0, chaos_s) for _ in range(chance.randint(0, FAULTS_MAX)))
    faults += [draw_fault(chance, KINDS, when, nodes, chaos_s) for when in times]
    return (*faults, *_draw_liar(chance, nodes, place, chaos_s))


def _draw_liar(chance: Random, nodes: int, place: int, chaos_s: float) -> list[Fault]:
    """A liar, its lies, and perhaps a person who removes it for good."""
    at = chance.uniform(3.0, 0.6 * chaos_s)
    kept_out = place > nodes and chance.random() < 0.6
    ends = chance.choice(("gone", "removed", "removed", "stays" if kept_out else "removed"))
    faults: list[Fault] = [Liar(at, place, kept_out, chance.random() < 0.5, ends)]
    removed_at = None
    if ends != "stays" and chance.random() < 0.5:
        removed_at = chance.uniform(at, chaos_s)
        asked = chance.choice([node for node in range(1, nodes + 1) if node != place])
        faults += [Removal(removed_at, asked, place, forbid=True)]
    covered = chance.random() >= UNCOVERED_SHARE
    outside = kept_out or removed_at is not None
    kinds = [(name, kind) for name, kind in LIES.items() if kind.covered and (outside or not kind.outside)]
    names = [name for name, kind in kinds for _ in range(OFTEN if kind.often else 1)]
    told = [*dict.fromkeys(chance.sample(names, chance.choice((1, 1, 2, 3, 4))))]
    if not covered:
        told += chance.sample([name for name, kind in LIES.items() if not kind.covered], chance.randint(1, 2))
    everybody = [node for node in range(1, nodes + 1) if node != place]
    for name in told:
        begin = chance.uniform(at, chaos_s)
        for_s = FOR_EVER_S if chance.random() < 0.6 else chance.uniform(5.0, 60.0)
        to = (
            everybody
            if chance.random() < 0.7
            else chance.sample(everybody, chance.randint(1, len(everybody)))
        )
        faults.append(Lie(begin, place, for_s, name, tuple(sorted(to))))
    return faults
