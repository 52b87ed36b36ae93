"""Many seeds: on one core or all of them, with or without a mutant; and what is to be said about them."""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Final

from tests.sim.family import ASYNC, Draw, Family
from tests.sim.mutants import mutated
from tests.sim.outcome import Outcome
from tests.sim.world import simulate

DEADLINE_SEEDS: Final = 1000  # a mutant that is alive after so many seeds lives
CHUNK: Final = 8


@dataclass(slots=True)
class Summary:
    """Sums over many runs."""

    family: Family = ASYNC
    seeds: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0  # of the whole sweep, all cores together working
    cpu_s: float = 0.0  # of all runs, one after the other
    healing_s_max: float = 0.0
    events: int = 0
    updates: int = 0
    sightings: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more run."""
        self.seeds += 1
        self.virtual_s += outcome.virtual_s
        self.cpu_s += outcome.cpu_s
        self.healing_s_max = max(self.healing_s_max, outcome.healing_s)
        self.events += outcome.events
        self.updates += outcome.updates
        self.sightings.update(outcome.sightings)
        if outcome.violation is not None:
            self.failed.append(outcome)

    @property
    def unseen(self) -> list[str]:
        """What must occur and never did."""
        return [what for what in self.family.must_occur if not self.sightings[what]]


def run_seed(
    seed: int, nodes: int | None = None, *, draw: Draw = ASYNC.draw, tracing: bool = False
) -> Outcome:
    """One seed with the code as it is. What a run makes lives as long as the run, so cycles are looked for at
    its end, and only in what it made.
    """
    began = time.process_time()
    gc.freeze()
    gc.disable()
    try:
        outcome = simulate(draw(seed, nodes=nodes), tracing=tracing)
    finally:
        gc.enable()
        gc.collect()
        gc.unfreeze()
    outcome.cpu_s = time.process_time() - began
    return outcome


def sweep(
    seeds: Sequence[int],
    *,
    family: Family = ASYNC,
    nodes: int | None = None,
    processes: int = 1,
    progress: Callable[[Summary, Outcome], None] | None = None,
) -> Summary:
    """All seeds, in order of their numbers; `progress` is told after each."""
    summary = Summary(family)
    began = time.perf_counter()
    for outcome in _outcomes(seeds, family, nodes, processes):
        summary.add(outcome)
        summary.real_s = time.perf_counter() - began
        if progress is not None:
            progress(summary, outcome)
    return summary


def _outcomes(seeds: Sequence[int], family: Family, nodes: int | None, processes: int) -> Iterator[Outcome]:
    if processes == 1:
        for seed in seeds:
            yield run_seed(seed, nodes, draw=family.draw)
        return
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap(partial(run_seed, nodes=nodes, draw=family.draw), seeds, chunksize=CHUNK)


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of a mutant: in how many of the seeds it died, and in which first (None: it lives)."""

    name: str
    seeds: int
    died: int
    first: int | None
    invariants: Counter[str]


def hunt(
    name: str,
    seeds: Iterable[int],
    *,
    family: Family = ASYNC,
    nodes: int | None = None,
    deaths_max: int | None = None,
) -> Hunt:
    """Run a mutant through seeds; no further than `deaths_max` deaths."""
    tried, first = 0, None
    invariants: Counter[str] = Counter()
    with mutated(family.mutants[name]):
        for seed in seeds:
            tried += 1
            outcome = run_seed(seed, nodes, draw=family.draw)
            if outcome.violation is not None and outcome.name != "exception":  # which may be the edit's own
                first = tried - 1 if first is None else first
                invariants[outcome.name] += 1
                if deaths_max is not None and invariants.total() >= deaths_max:
                    break
    return Hunt(name, tried, invariants.total(), first, invariants)


def hunt_all(
    seeds: Sequence[int],
    *,
    family: Family = ASYNC,
    nodes: int | None = None,
    names: Iterable[str] | None = None,
) -> Iterator[Hunt]:
    """Every mutant through all seeds, and on beyond them if it has not died there."""
    for name in family.mutants if names is None else names:
        found = hunt(name, seeds, family=family, nodes=nodes)
        if found.first is None:
            beyond = range(seeds[-1] + 1, seeds[-1] + 1 + DEADLINE_SEEDS)
            later = hunt(name, beyond, family=family, nodes=nodes, deaths_max=1)
            first = None if later.first is None else found.seeds + later.first
            found = Hunt(name, found.seeds + later.seeds, later.died, first, later.invariants)
        yield found


def median_first(hunts: Sequence[Hunt]) -> float:
    """The median over all mutants of how many seeds went by before the first death."""
    return statistics.median(float("inf") if each.first is None else each.first for each in hunts)
