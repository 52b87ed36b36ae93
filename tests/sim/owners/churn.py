"""A crowd that trains in rounds while nodes are killed, restarted, join and leave; replicas equal at the end.

`python -m tests.sim --crowd NODES --rounds ROUNDS` runs it, `make crowd NODES=1000` with a thousand nodes.

What a thousand nodes can afford of the checks of other scenarios:

| | |
|---|---|
| view | of each number there is one, and nobody goes back to one before |
| I9 | whenever a trainer is opened a round: nodes that have applied the same have the same digest; at the \
end it is that of the weights |
| I5 | at each disturbance and at the end: nobody has given up what a READY member of its view lacks |
| I4 | at the end: equal frontiers and bytes, all READY, members of one view, and no contribution waits |
| O8 | a round is opened to some trainer within 25 failure timeouts after the one before |
| halt | no node ends by itself, raises an alarm, drops a link or refuses its trainer |
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from p2psgd.core.events import RemovalRequested, TrainerChanged
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.ranges import owner_count
from p2psgd.core.view import View
from p2psgd.wire import codec
from p2psgd.wire.mode import OWNERS_ROUNDS
from p2psgd.wire.ring_messages import ContributionMade
from p2psgd.wire.update import OwnUpdateMade
from tests.sim.owners.crowd import MAGNITUDE, Crowd, Node

WEIGHTS: Final = 20_000
DENSITY: Final = 1 / 850
STEP_S: Final = 0.5
FAILURE_TIMEOUT_S: Final = 30.0
BACK_AFTER_S: Final = 5.0  # a killed node starts again
PATIENCE_TIMEOUTS: Final = 25  # as in rounds.py
DIGESTS_MAX: Final = 4096
CROWD_MIN: Final = 20  # so that all that happens happens to others than the owners


class ChurnCrowd(Crowd):
    """Nodes in rounds. A trainer that has given its part of the last round gives no more."""

    def __init__(self, *, nodes: int, rounds: int, seed: int = 1, weights: int = WEIGHTS) -> None:
        super().__init__(
            nodes=nodes,
            weights=weights,
            density=DENSITY,
            step_s=STEP_S,
            failure_timeout_s=FAILURE_TIMEOUT_S,
            mode=OWNERS_ROUNDS.word,
            seed=seed,
        )
        self.rounds = rounds
        self.reached = 0  # the last round that was complete at some node
        self.reached_at = self.now
        self.churn: list[tuple[int, str, Callable[[], None]]] = []  # the next one last
        self._digests: dict[frozenset[tuple[Origin, tuple[int, int, int]]], int] = {}
        self._views: dict[int, View] = {}

    # -- trainers

    def begin(self, node: Node) -> None:
        self.after(self.chance.uniform(0, self.step_s), lambda: node.give(TrainerChanged(active=True)))
        self.after(self.chance.uniform(0, self.tick_s), lambda: self.tick(node))

    def round_opened(self, node: Node) -> None:
        owners = node.replica.owners
        assert owners is not None
        self._check_round(node)
        if owners.round > self.reached:
            self.reached, self.reached_at = owners.round, self.now
            while self.churn and self.churn[-1][0] <= self.reached:
                _, words, happen = self.churn.pop()
                self.after(self.chance.uniform(0, self.step_s), partial(self._disturb, words, happen))
        self.after(self.step_s * self.chance.uniform(0.95, 1.05), lambda: self._share(node))

    def _share(self, node: Node) -> None:
        owners = node.replica.owners
        assert owners is not None
        if node.alive and not node.leaving and owners.round < self.rounds:
            node.steps += 1
            node.give(ContributionMade(node.steps, (self._make(node),)))

    def _make(self, node: Node) -> OwnUpdateMade:
        weights = self.spec.coordinates
        indices = np.unique(node.chance.integers(0, weights, self.indices))
        words = (indices << 1 | node.chance.integers(0, 2, len(indices))).astype(np.uint32)
        return OwnUpdateMade(node.steps, MAGNITUDE, codec.encode(words, weights), words)

    # -- checks

    def _check_round(self, node: Node) -> None:
        replica = node.replica
        applied, digest = frozenset(replica.frontier.items()), replica.lattice.digest
        if len(self._digests) > DIGESTS_MAX:
            self._digests.clear()
        known = self._digests.setdefault(applied, digest)
        assert known == digest, f"node {node.number} has applied what others have, and differs"
        self._check_view(node)

    def _check_view(self, node: Node) -> None:
        view = node.replica.view
        known = self._views.setdefault(view.number, view)
        assert known is view or known == view, f"node {node.number} has another view {view.number}"

    def check_floors(self) -> None:
        """I5. All lives are looked at once for each origin and view, and each log once."""
        views: dict[int, list[Node]] = {}
        for node in self.alive:
            views.setdefault(node.replica.view.number, []).append(node)
        for number, nodes in views.items():
            view = nodes[0].replica.view
            ready = [each for each in nodes if each.replica.ready and each.me in view]
            origins = {origin for node in nodes for origin in node.replica.frontier}
            for origin in origins:
                least = min((each.replica.frontier.sequence(origin) for each in ready), default=2**64)
                for node in nodes:
                    floor = node.replica.log.trimmed_to(origin)
                    assert floor <= least, (
                        f"node {node.number} has given up {origin} to {floor} in view {number}, where a "
                        f"READY member has {least}"
                    )

    def check(self) -> None:
        """Check all that must hold at the end."""
        first, *rest = self.alive
        rows, weights = first.replica.frontier.rows(), first.replica.lattice.coordinates.tobytes()
        for node in rest:
            assert node.replica.frontier.rows() == rows, f"node {node.number} lacks updates"
            assert node.replica.lattice.coordinates.tobytes() == weights, f"node {node.number} differs"
        for node in self.alive:
            lattice, owners = node.replica.lattice, node.replica.owners
            assert owners is not None
            assert owners.waiting == 0, f"{owners.waiting} contributions of {node.number} wait"
            assert owners.lost == 0, f"node {node.number} has given up {owners.lost} contributions"
            assert lattice.digest == first.replica.lattice.digest == lattice.recompute_digest()
        self.check_floors()

    # -- churn

    def _disturb(self, words: str, happen: Callable[[], None]) -> None:
        print(f"  round {self.reached}: {words}; {self.describe()}", flush=True)
        for node in self.alive:
            self._check_view(node)
            if node.replica.ready:  # as if its log were full: whoever comes is given a snapshot
                node.replica.retention.trim(node.replica.view, 0.0)
        self.check_floors()
        happen()

    def draw_churn(self) -> None:
        """Plan what happens to whom, all through the rounds: at each of them to one node in 200, or one."""
        size = len(self.nodes)
        many = max(1, size // 200)
        owners = owner_count(size, self.spec.weights)
        places = self.chance.sample(range(owners + 1, size + 1), 5 * many)
        killed, gone, left, removed, again = (places[at * many : (at + 1) * many] for at in range(5))
        plans: list[tuple[str, Callable[[], None]]] = [
            (f"{many} join", lambda: self._each(range(many), lambda _: self.join())),
            (f"{killed} killed, and restarted", lambda: self._each(killed, self.kill_and_restart)),
            (f"{left} leave", lambda: self._each(left, self.stop)),
            ("owner 2 killed, and restarted", lambda: self.kill_and_restart(2)),
            (f"{gone} killed for good", lambda: self._each(gone, self.kill)),
            (f"{many} join", lambda: self._each(range(many), lambda _: self.join())),
            ("owner 3 leaves", lambda: self.stop(3)),
            (f"{again} killed, and restarted", lambda: self._each(again, self.kill_and_restart)),
            (f"a person has {gone} removed", lambda: self._each(gone, self.remove)),
            ("owner 4 killed for good", lambda: self.kill(4)),
            (f"{removed} leave", lambda: self._each(removed, self.stop)),
        ]
        step = self.rounds / (len(plans) + 1)
        self.churn = [
            (round((number + 1) * step), words, happen) for number, (words, happen) in enumerate(plans)
        ][::-1]

    def _each(self, numbers: list[int] | range, happen: Callable[[int], None]) -> None:
        for number in numbers:
            happen(number)

    def kill_and_restart(self, number: int) -> None:
        """A machine loses what it had in memory, and comes back with its votes, by a snapshot."""
        self.kill(number)
        self.after(BACK_AFTER_S, lambda: self.restart(number))

    def remove(self, number: int) -> None:
        """A person has a node removed that does not come back."""
        for node in self.alive[:3]:
            node.give(RemovalRequested(number, forbid=False))

    # -- the run

    def run_all(self) -> None:
        """Run all rounds with their churn, and wait until all is equal."""
        self.draw_churn()
        self.start()
        while self.reached < self.rounds or self.differ():
            self.run(self.step_s if self.reached < self.rounds else self.failure_timeout_s / 5)
            waited_s = self.now - self.reached_at
            if waited_s > PATIENCE_TIMEOUTS * self.failure_timeout_s:
                some = next((words for node in self.alive if (words := self.explain(node))), "")
                raise AssertionError(f"{waited_s:.0f} s after round {self.reached} nothing goes on: {some}")
        self.check()

    def explain(self, node: Node) -> str:
        """Return what a node waits for."""
        owners = node.replica.owners
        assert owners is not None
        words = node.replica.waiting_for() or owners.waiting_for(self.now)
        return f"node {node.number}, {node.replica.view.number}: {words}" if words else ""

    def describe(self) -> str:
        """Return how far the run is, and what it has cost."""
        views = {node.replica.view.number for node in self.alive}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return (
            f"{len(self.alive)} alive, {self.now - 100:.1f} s, views {sorted(views)}, "
            f"{self.events:,} events, {time.process_time():.0f} s of CPU, {peak:.2f} GiB"
        )


def run_crowd(nodes: int, rounds: int, *, seed: int = 1) -> ChurnCrowd:
    """Run a crowd of that many nodes; AssertionError if anything is not as it must be."""
    gc.disable()  # of a thousand nodes it takes a third of the time at each view, and finds nothing
    try:
        crowd = ChurnCrowd(nodes=nodes, rounds=rounds, seed=seed)
        crowd.run_all()
    finally:
        gc.enable()
    print(f"{nodes} nodes, {rounds} rounds, all equal: {crowd.describe()}", flush=True)
    return crowd
