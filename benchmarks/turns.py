"""Measure how long single turns of a node's loop are when its log holds very many small updates.

One of three nodes has made them alone. A checkpoint is written of it; then another comes back and needs a
snapshot with all of that log, and makes some of its own meanwhile. The CPU time of each `Replica.handle`
is what a turn costs, whatever else the machine does. Python's garbage collector is off: a pass over all that
this process has takes 50 ms by itself.
"""

from __future__ import annotations

import gc
import itertools
import time

from benchmarks import Figure, checksum
from p2psgd.core.effects import Effect
from p2psgd.core.events import CheckpointDue, Event, TimePassed
from tests.core.cluster import Cluster, own_update
from tests.core.test_snapshots import silenced

INDICES = 20
PARTS = {"donor": 0, "joiner": 2}


class TimedCluster(Cluster):
    """Notes the CPU time of each turn: by node, with the name of the event."""

    def __init__(self, size: int) -> None:
        self.turns: dict[int, list[tuple[float, str]]] = {number: [] for number in range(size)}
        super().__init__(size, log_budget_bytes=1 << 30)
        for number in range(size):
            self._time(number)

    def _time(self, number: int) -> None:
        handle, turns = self.replica(number).handle, self.turns[number]

        def timed(event: Event, now: float) -> list[Effect]:
            began = time.thread_time()
            effects = handle(event, now)
            turns.append((time.thread_time() - began, type(event).__name__))
            return effects

        self.replica(number).handle = timed  # type: ignore[method-assign]

    def forget(self) -> None:
        for turns in self.turns.values():
            turns.clear()


def run(*, large: bool) -> list[Figure]:
    gc.disable()
    try:
        return measure(300_000 if large else 600)
    finally:
        gc.enable()


def measure(updates: int) -> list[Figure]:
    cluster = TimedCluster(3)
    cluster.found()
    for other in (1, 2):
        cluster.cut(0, other)
    cluster.cut(1, 2)
    make(cluster, 0, 10)
    cluster.lose_log(0)
    make(cluster, 0, updates)
    figures = []
    cluster.forget()
    cluster.give(0, CheckpointDue())
    figures += figures_of("checkpoint", cluster.turns[0])
    cluster.forget()
    cluster.link(0, 2)
    joiner, alone = cluster.replica(2), updates // 10
    taken = joiner.counters
    while not taken.snapshots_taken:
        if alone and joiner.fetch.taking.bytes_taken:
            make(cluster, 2, alone)
            alone = 0
        if not sum(cluster.deliver(*direction) for direction in list(cluster.queues)):
            cluster.now += 0.2
            for node in (0, 2):
                cluster.give(node, TimePassed())
    assert taken.reapplied == updates // 10, taken
    for part, node in PARTS.items():
        figures += figures_of(part, cluster.turns[node])
    result = checksum(joiner.lattice.coordinates.tobytes())
    return [*figures, Figure("updates in the log", updates, "updates", result)]


def make(cluster: Cluster, node: int, updates: int) -> None:
    replica = cluster.replica(node)
    events = [own_update(list(range(start, 4000 + start, 4000 // INDICES))) for start in range(100)]
    with silenced(replica):  # only it is to have them
        for event in itertools.islice(itertools.cycle(events), updates):
            type(replica).handle(replica, event, cluster.now)


def figures_of(part: str, turns: list[tuple[float, str]]) -> list[Figure]:
    ordered = sorted(turns)
    median, late, most = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 1.0))
    note = f"{len(turns)} turns, median {1e3 * median[0]:.3f} ms, 99th percentile {1e3 * late[0]:.3f} ms"
    return [Figure(f"{part}: longest turn ({most[1]})", 1e3 * most[0], "ms", note)]
