"""What one seed of the ring family stands for."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.sim.faults import BeginAmbush, Fault, Mismatched, Outcast, TrainerAway, TrainerSlow, Unlinked
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
FAULTS_MAX: Final = 12
FAILURE_TIMEOUT_S: Final = 5.0  # the default of a real node
WORDS: Final = (
    *("ring-sparse", "ring-sparse", "ring-sparse", "ring-sparse"),
    *("ring-dense", "ring-dense", "ring-dense", "ring-dense-float16"),
)
NOT_IN_DENSE: Final = {"forge", "duplicate", "swap", "lose"}  # done to updates, which nobody sends there
RING_KINDS: Final = (
    *("away", "away", "away", "slow trainer", "slow trainer", "begin", "begin", "begin"),
    *("pause", "reset", "reset", "crash"),
)


def draw_ring_scenario(seed: int, *, nodes: int | None = None) -> Scenario:
    """The scenario of a seed; `nodes` overrules how many it has."""
    chance = Random(f"{seed} ring scenario")
    size = chance.randint(2, NODES_MAX)
    size = size if nodes is None else nodes
    chaos_s = chance.uniform(40.0, 120.0)
    word = chance.choice(WORDS)
    weights = chance.randint(50, 300) if "sparse" in word else chance.randint(5, 300)
    work = _draw_work(chance, word, size, weights)
    return Scenario(
        seed=seed,
        nodes=size,
        coordinates=weights,
        two_nodes=chance.choice(("stall", "lower-id")),
        failure_timeout_s=FAILURE_TIMEOUT_S,
        chaos_s=chaos_s,
        work_s=0.0,
        rates=tuple(1.0 / step_s for step_s in work.step_s),
        indices_max=chance.randint(1, min(weights, 30)),
        credit_bytes=chance.choice((800, 3000, 20_000, 1 << 20)),
        latency_s=10.0 ** chance.uniform(-3.3, -1.0),  # 0.5 to 100 ms
        jitter_s=10.0 ** chance.uniform(-4.0, -1.3),
        bytes_per_s=10.0 ** chance.uniform(4.0, 8.0),
        faults=_draw_faults(chance, size, chaos_s, work),
        ring=work,
    )


def _draw_work(chance: Random, word: str, nodes: int, weights: int) -> RingWork:
    steps = [10.0 ** chance.uniform(-0.7, 0.4) for _ in range(nodes)]  # 0.2 to 2.5 s
    if chance.random() < 0.1:  # one is slower than failure timeout, for ever
        steps[chance.randrange(nodes)] = FAILURE_TIMEOUT_S * chance.uniform(1.5, 4.0)
    followers = frozenset(place for place in range(1, nodes + 1) if chance.random() < 0.15)
    cuts = sorted(chance.sample(range(1, weights), chance.randint(0, min(4, weights - 1))))
    buckets = [(start, end - start) for start, end in zip([0, *cuts], [*cuts, weights], strict=True)]
    buckets.reverse()  # the output layer's gradients are ready first
    return RingWork(
        word=word,
        step_s=tuple(steps),
        followers=followers if len(followers) < nodes else frozenset(),
        buckets=tuple(buckets),
        arrays_every=chance.choice((0, 2, 5)) if "dense" in word else 0,
        rests=chance.random() < 0.5,
    )


def _draw_faults(chance: Random, nodes: int, chaos_s: float, work: RingWork) -> tuple[Fault, ...]:
    everybody = range(1, nodes + 1)
    faults: list[Fault] = []
    dense = work.mode.dense
    if not dense and chance.random() < 0.5:
        entries = chance.choice((30, 60))
        faults += [draw_log(chance, node, entries) for node in everybody]
    if nodes > 3 and chance.random() < 0.1:
        faults += [Unlinked(*sorted(chance.sample(range(2, nodes + 1), 2)))]
    outcasts = chance.sample(range(2, nodes + 1), chance.randint(0, (nodes - 1) // 2))
    faults += [Outcast(node, chance.choice(FATES), friend=1) for node in outcasts]
    if chance.random() < 0.2:
        faults += draw_late_starts(chance, nodes, chaos_s)
    kinds = [kind for kind in KINDS if not dense or kind not in NOT_IN_DENSE]
    kinds += RING_KINDS + ("mismatch", "mismatch") * dense
    for when in sorted(chance.uniform(1.0, chaos_s) for _ in range(chance.randint(0, FAULTS_MAX))):
        kind = chance.choice(kinds)
        faults.append(_draw_fault(chance, kind, when, nodes, chaos_s))
    if chance.random() < 0.1:
        faults += draw_removal_for_good(chance, nodes, chaos_s)
    return tuple(faults)


def _draw_fault(chance: Random, kind: str, at: float, nodes: int, chaos_s: float) -> Fault:
    a = chance.randint(1, nodes)
    lasts_s = 30.0 * chance.random() ** 2 + 0.05
    match kind:
        case "away":
            return TrainerAway(at, a, float("inf") if chance.random() < 0.2 else lasts_s)
        case "slow trainer":
            return TrainerSlow(at, a, lasts_s, chance.uniform(0.3, 3.0) * FAILURE_TIMEOUT_S)
        case "begin":
            return BeginAmbush(at, chance.choice(("crash", "pause", "reset")), chance.random() ** 4, lasts_s)
        case "mismatch":
            return Mismatched(at, a)
        case _:
            return draw_fault(chance, (kind,), at, nodes, chaos_s)
