"""Many nodes of mode `owners` in one process: the daemon's executor and replica, paced trainers, a clock that
jumps. What a node sends for a step is counted by kind; at the end all replicas must be equal, and hold what
all trainers have made.

    python -m tests.sim.owners.crowd --nodes 4 8 16 32 64 [--mode async]

The world of the other scenarios checks every event and is made for a few nodes; this one is made for a
thousand. Above LINKED_TO_ALL nodes each is linked only to owners and to those next to it in relay trees.
churn.py lets nodes of it come and go.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import LogEvent, OpenRound, SaveVotes, Shutdown, WriteCheckpoint
from p2psgd.core.events import (
    Event,
    FrameReceived,
    HandOver,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    NodeStopping,
    PeerMessage,
    TimePassed,
    VotesSaved,
    parse_peer_message,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.ranges import owner_count
from p2psgd.core.owners.relay_trees import FAN_OUT, place_at, position_of
from p2psgd.core.replica import Replica
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.core.timing import Timing
from p2psgd.core.view import NO_VIEW, NO_VOTES, Votes
from p2psgd.node.run import Executor, Handle
from p2psgd.wire import codec
from p2psgd.wire.evaluation import EvaluationAnswered
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.update import OwnUpdateMade, parse_update

LINKED_TO_ALL: Final = 100
LATENCY_S: Final = 0.001
TICKS_PER_TIMEOUT: Final = 10
MAGNITUDE: Final = 16
LOG_BYTES: Final = 1 << 28
PARSED_MAX: Final = 256  # frames whose message is remembered: one STATUS goes to many


class Node:
    """One node: its replica, and its ends of links, disk and trainer."""

    def __init__(self, crowd: Crowd, number: int, votes: Votes, size: int, *, incarnation: int = 1) -> None:
        self.crowd, self.number = crowd, number
        self.me = Origin(number, incarnation)
        self.alive, self.leaving = True, False
        self.steps = 0
        self.votes = votes  # on its disk
        self.chance = np.random.default_rng((number, incarnation))
        self.replica = Replica(
            crowd.spec,
            me=self.me,
            coordinates=crowd.initial.copy(),
            now=crowd.now,
            timing=Timing(crowd.failure_timeout_s),
            bootstrap_expect=size,
            votes=votes,
            log_budget_bytes=crowd.log_bytes,
        )
        self.executor = Executor(
            self.replica,
            network=self,
            disk=self,
            trainer=self,
            log=self,
            now=lambda: crowd.now,
            call_soon=self.call_soon,
        )

    def give(self, event: Event) -> None:
        if self.alive:
            self.crowd.events += 1
            self.executor.handle(event)

    def call_soon(self, handle: Handle, event: Event) -> None:
        self.crowd.after(0.0, lambda: handle(event) if self.alive else None)

    # -- the network

    def send(self, peer: Origin, frame: bytes) -> None:
        self.crowd.count(frame)
        target, me = self.crowd.nodes[peer.node], self.me
        if target.me == peer:
            self.crowd.after(LATENCY_S, lambda: self.crowd.arrive(me, target, frame))

    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None:
        raise AssertionError("no ring here")

    def report_drained(self, peer: Origin) -> None:
        self.crowd.after(LATENCY_S, lambda: self.give(LinkDrained(peer)))

    def drop(self, peer: Origin, code: RejectCode, details: str) -> None:
        raise AssertionError(f"node {self.number} drops {peer.node}: {code} {details}")

    # -- the disk

    def save_votes(self, effect: SaveVotes) -> None:
        def saved() -> None:
            if self.alive:
                self.votes = effect.votes
                self.give(VotesSaved(effect.revision))

        self.crowd.after(LATENCY_S, saved)

    def add_own(self, frame: bytes) -> None: ...

    def write(self, effect: WriteCheckpoint) -> None: ...

    def read(self) -> None: ...

    # -- the trainer

    def deliver(self, body: bytes | bytearray) -> None: ...

    def replica_replaced(self) -> None: ...

    def open_round(self, effect: OpenRound) -> None:
        self.crowd.round_opened(self)

    def reject_contribution(self, words: str) -> None:
        raise AssertionError(f"node {self.number}: {words}")

    def answer_evaluation(self, answer: EvaluationAnswered) -> None: ...

    # -- people

    def alert(self, words: str) -> None:
        raise AssertionError(f"node {self.number}: {words}")

    def event(self, note: LogEvent) -> None:
        self.crowd.notes[note.kind] += 1

    def shutdown(self, effect: Shutdown) -> None:
        raise AssertionError(f"node {self.number}: {effect}")


class Crowd:
    """All nodes, the wires between them and the time."""

    def __init__(
        self,
        *,
        nodes: int,
        weights: int,
        density: float,
        step_s: float,
        failure_timeout_s: float,
        mode: str,
        seed: int = 1,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        self.now = 100.0
        self.events = 0
        self.step_s, self.indices = step_s, max(1, round(weights * density))
        self.failure_timeout_s = failure_timeout_s
        self.log_bytes = log_bytes
        self.initial: NDArray[np.int32] = np.zeros(weights, np.int32)
        thirds = [weights * part // 3 for part in range(4)]
        tensors = tuple((f"t{part}", (thirds[part + 1] - thirds[part],)) for part in range(3))
        self.spec = RunSpec(tensors, -20, mode, "crowd", hash_coordinates(self.initial), "stall", 0)
        self.made: NDArray[np.int64] = np.zeros(weights, np.int64)
        self.sent: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.training = True
        self.counting = False
        self.exact = True  # nothing is lost
        self.waited = 0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._parsed: OrderedDict[bytes, PeerMessage | None] = OrderedDict()
        self.chance = Random(seed)
        self.links: set[frozenset[int]] = set()
        self._rewiring = False
        votes = Votes(view=NO_VIEW.replace(dict.fromkeys(range(1, nodes + 1), 1), set(), set()))
        self.nodes = {number: Node(self, number, votes, nodes) for number in range(1, nodes + 1)}

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    def count(self, frame: bytes) -> None:
        """Count a frame that is sent, by its kind and part, while that is wanted."""
        if not self.counting:
            return
        kind = FrameType(frame[4])
        if kind is FrameType.UPDATE:
            header, payload = parse_update(memoryview(frame)[PREFIX.size :], self.spec.coordinates)
            cover = 0 if header.cover is None else len(frame) - 69 - len(payload)
            self.sent["update payload"] += len(payload)
            self.sent["update header"] += 69
            self.sent["update cover"] += cover
            self.sent["updates (count)"] += 1
        elif kind is FrameType.CONTRIBUTION:
            self.sent["contribution payload"] += len(frame) - 29
            self.sent["contribution header"] += 29
        else:
            self.sent[kind.name] += len(frame)
            self.sent[f"{kind.name} (count)"] += 1

    def arrive(self, source: Origin, target: Node, frame: bytes) -> None:
        if not target.alive or source not in target.replica.peers:
            return  # the link is closed
        message = self._parsed.get(frame)
        if message is None:
            message = parse_peer_message(FrameType(frame[4]), frame[PREFIX.size :])
            if frame[4] == FrameType.STATUS:
                self._parsed[frame] = message
                if len(self._parsed) > PARSED_MAX:
                    self._parsed.popitem(last=False)
        if message is not None:
            target.give(FrameReceived(source, message))

    def link(self, one: int, other: int) -> None:
        cable = frozenset((one, other))
        if one == other or cable in self.links or not (self.nodes[one].alive and self.nodes[other].alive):
            return
        self.links.add(cable)
        for here, there in ((one, other), (other, one)):
            self.nodes[here].give(LinkOpened(self.nodes[there].me, f"node-{there}"))

    def cut(self, one: int, other: int) -> None:
        self.links.discard(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            self.nodes[here].give(
                LinkClosed(self.nodes[there].me)
            )  # of two one may be dead, and does not hear

    def start(self) -> None:
        self.wire(list(self.nodes))
        for node in self.nodes.values():
            self.begin(node)

    def wire(self, numbers: list[int]) -> None:
        """Link these nodes, who are about to be the members."""
        size, weights = len(numbers), self.spec.weights
        if size <= LINKED_TO_ALL:
            for one, other in itertools.combinations(numbers, 2):
                self.link(one, other)
            return
        owners = owner_count(size, weights)
        for root, place in itertools.product(range(owners), range(size)):
            self.link(numbers[root], numbers[place])
            position = position_of(place, root, members=size, owners=owners)
            above = (
                place_at((position - 1) // FAN_OUT, root, members=size, owners=owners) if position else root
            )
            self.link(numbers[above], numbers[place])

    # -- churn

    def rewire(self) -> None:
        """Link those who are there in a moment: once for all that happens until then."""
        if not self._rewiring:
            self._rewiring = True
            self.after(LATENCY_S, self._rewire)

    def _rewire(self) -> None:
        self._rewiring = False
        self.wire(sorted(node.number for node in self.alive if not node.leaving))

    def join(self) -> None:
        """A node with an empty disk comes."""
        number = max(self.nodes) + 1
        self.nodes[number] = Node(self, number, NO_VOTES, len(self.nodes))
        self.rewire()
        self.begin(self.nodes[number])

    def kill(self, number: int) -> None:
        """A node is gone at once, and with it what it had not sent, or added up and not published."""
        node = self.nodes[number]
        node.alive = False
        self.exact = False
        for other in [each for cable in self.links if number in cable for each in cable - {number}]:
            self.cut(number, other)
        self.rewire()

    def restart(self, number: int) -> None:
        """A killed node starts again, with its votes."""
        dead = self.nodes[number]
        self.nodes[number] = Node(
            self, number, dead.votes, len(self.nodes), incarnation=dead.me.incarnation + 1
        )
        self.rewire()
        self.begin(self.nodes[number])

    def stop(self, number: int) -> None:
        """A node leaves in order."""
        node = self.nodes[number]
        node.leaving = True
        self.rewire()
        node.give(HandOver())
        self._leave(node)

    def _leave(self, node: Node) -> None:
        owners = node.replica.owners
        assert owners is not None
        if owners.waits_to_leave:
            self.after(self.tick_s, lambda: self._leave(node))
        else:
            node.give(NodeStopping("it is to"))
            self.after(1.0, lambda: self._end(node))

    def _end(self, node: Node) -> None:
        node.alive = False
        for other in [each for cable in self.links if node.number in cable for each in cable - {node.number}]:
            self.cut(node.number, other)

    def begin(self, node: Node) -> None:
        self.after(self.chance.uniform(0, self.step_s), lambda: self.step(node))
        self.after(self.chance.uniform(0, self.tick_s), lambda: self.tick(node))

    def round_opened(self, node: Node) -> None:
        """A node's trainer may give its part of the next round."""

    def tick(self, node: Node) -> None:
        if node.alive:
            node.give(TimePassed())
            self.after(self.tick_s, lambda: self.tick(node))

    def step(self, node: Node) -> None:
        if not (node.alive and self.training) or node.leaving:
            return
        owners = node.replica.owners
        if not node.replica.ready or (owners is not None and owners.full):
            self.waited += node.replica.ready
            self.after(self.step_s / 20, lambda: self.step(node))
            return
        node.steps += 1
        weights = self.spec.coordinates
        indices = np.unique(node.chance.integers(0, weights, self.indices))
        words = (indices << 1 | node.chance.integers(0, 2, len(indices))).astype(np.uint32)
        self.made[indices] += MAGNITUDE * (1 - 2 * (words & 1).astype(np.int64))
        payload = codec.encode(words, weights)
        node.give(OwnUpdateMade(node.steps, MAGNITUDE, payload, words))
        self.after(self.step_s * self.chance.uniform(0.95, 1.05), lambda: self.step(node))

    # -- what is measured, and what must hold

    @property
    def tick_s(self) -> float:
        return self.failure_timeout_s / TICKS_PER_TIMEOUT

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    def steps(self) -> int:
        return sum(node.steps for node in self.nodes.values())

    def differ(self) -> bool:
        """Return whether something is still on its way."""
        views = {node.replica.view.number for node in self.alive}
        frontiers = {tuple(node.replica.frontier.rows()) for node in self.alive}
        members = {node.me for node in self.alive} ^ {*self.alive[0].replica.view.members}
        waiting = any(node.replica.owners and node.replica.owners.waiting for node in self.alive)
        ready = all(node.replica.ready for node in self.alive)
        gone = {member.node for member in members} <= {
            node.number for node in self.nodes.values() if not node.alive
        }
        return len(views) > 1 or len(frontiers) > 1 or not gone or waiting or not ready

    def check(self) -> None:
        """All replicas are equal, and hold with second residuals what all trainers made."""
        first, *rest = self.alive
        for node in rest:
            assert node.replica.frontier.rows() == first.replica.frontier.rows(), f"node {node.number} lacks"
            assert np.array_equal(node.replica.lattice.coordinates, first.replica.lattice.coordinates), (
                f"node {node.number} differs"
            )
        total = first.replica.lattice.coordinates.astype(np.int64)
        for node in self.alive:
            owners = node.replica.owners
            if owners is not None:
                assert owners.waiting == 0, f"{owners.waiting} contributions of {node.number} wait"
                begin, end = owners.aggregator.range
                total[begin:end] += owners.aggregator.residual
        if not self.exact:
            return
        assert np.array_equal(total, self.made), f"{np.count_nonzero(total != self.made)} weights are wrong"


def measure(crowd: Crowd, *, steps: int, settle: int) -> dict[str, float]:
    """Bytes that a node sends for a step, by kind."""
    crowd.start()
    crowd.run(settle * crowd.step_s)
    crowd.counting = True
    before = crowd.steps()
    crowd.run(steps * crowd.step_s)
    made = crowd.steps() - before
    return {kind: count / made for kind, count in sorted(crowd.sent.items())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.owners.crowd", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--settle", type=int, default=40)
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--mode", default="owners")
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--step-time", type=float, default=0.15)
    a = parser.parse_args()
    for nodes in a.nodes:
        began = time.process_time()
        crowd = Crowd(
            nodes=nodes,
            weights=a.weights,
            density=1 / 850,
            step_s=a.step_time,
            failure_timeout_s=a.timeout,
            mode=a.mode,
        )
        kinds = measure(crowd, steps=a.steps, settle=a.settle)
        total = sum(count for kind, count in kinds.items() if "(count)" not in kind)
        parts = ", ".join(f"{kind} {count:,.1f}" for kind, count in kinds.items())
        print(f"{nodes} nodes: {total:,.0f} bytes a step: {parts}; waited {crowd.waited}", flush=True)
        crowd.training = False
        crowd.run(2 * a.timeout)
        crowd.check()
        print(f"  equal; {crowd.events:,} events, {time.process_time() - began:.1f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
