"""Replicas in one process, joined by queues in place of sockets: the harness of the core's tests.

Links are FIFO in each direction and can be cut, which loses what is on its way. At the end
`assert_equal_at_equal_frontiers` must hold for every test; the fixture in conftest.py sees to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.closure.sums import ClosureMemory
from p2psgd.core.effects import (
    Drop,
    Effect,
    LogEvent,
    OpenRound,
    SaveVotes,
    Shutdown,
    WriteCheckpoint,
)
from p2psgd.core.events import (
    CheckpointRead,
    CheckpointWritten,
    Event,
    FrameReceived,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    PeerStatus,
    Restored,
    TimePassed,
    VotesSaved,
    parse_peer_message,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.ring.reduce import DenseMemory
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.core.update_log import Tail
from p2psgd.core.view import NO_VOTES, Votes
from p2psgd.node.run import Executor, Handle
from p2psgd.wire import codec
from p2psgd.wire.evaluation import EvaluationAnswered
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import ConfirmedRow, FrontierRow
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader

WEIGHTS = 5000


def initial_coordinates(shards: int = 0) -> NDArray[np.int32]:
    weights = np.arange(-WEIGHTS // 2, WEIGHTS - WEIGHTS // 2, dtype=np.int32)
    return np.concatenate([weights, np.zeros(codec.COUNTS_PER_SHARD * shards, np.int32)])


def make_spec(two_nodes: str = "stall", mode: str = "async", shards: int = 0) -> RunSpec:
    initial = hash_coordinates(initial_coordinates(shards))
    tensors = (("hidden", (40, 100)), ("output", (1000,)))
    return RunSpec(tensors, -20, mode, "test", initial, two_nodes, shards)


def make_words(indices: list[int], negative: bool = False) -> NDArray[np.uint32]:
    return np.array([index << 1 | negative for index in sorted(indices)], dtype=np.uint32)


def own_update(
    indices: list[int], *, magnitude: int = 3, negative: bool = False, steps: int = 1
) -> OwnUpdateMade:
    words = make_words(indices, negative)
    return OwnUpdateMade(steps, magnitude, codec.encode(words, WEIGHTS), words)


def sample_update(cluster: Cluster) -> tuple[UpdateHeader, bytes]:
    """A valid first update of node 0 that no other node has seen."""
    words = make_words([3, 9, 4000])
    digest = codec.digest_words(words, 5, cluster.spec.key)
    origin = cluster.replica(0).me
    header = UpdateHeader(*origin, sequence=1, digest=digest, steps=1, magnitude=5, count=3)
    return header, codec.encode(words, WEIGHTS)


def by_origin(rows: Iterable[FrontierRow]) -> dict[Origin, FrontierRow]:
    return {Origin(row.node, row.incarnation): row for row in rows}


def status_of(
    peer: Origin,
    rows: list[FrontierRow],
    *,
    view: int = 0,
    cluster_id: int = 0,
    ready: bool = False,
    confirmed: list[ConfirmedRow] | None = None,
) -> FrameReceived:
    return FrameReceived(peer, PeerStatus(by_origin(rows), view, cluster_id, ready, confirmed or [], [], 0))


class Ports:
    """One node's ends of the cluster's queues and disks, and its trainer and people."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._number = number

    def call_soon(self, handle: Handle, event: Event) -> None:
        if self._number not in self._cluster.paused:
            handle(event)

    # -- the network

    def send(self, peer: Origin, frame: bytes) -> None:
        self._cluster.queues[self._number, peer.node - 1].append(frame)

    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None:
        self.send(peer, head + bytes(numbers))

    def report_drained(self, peer: Origin) -> None:
        self._cluster.reports.add((self._number, peer.node - 1))

    def drop(self, peer: Origin, code: RejectCode, details: str) -> None:
        self._cluster.drops.append((self._number, Drop(peer, code, details)))

    # -- the disk

    def save_votes(self, effect: SaveVotes) -> None:
        self._cluster.votes[self._number] = effect.votes
        self._cluster.give(self._number, VotesSaved(effect.revision))

    def add_own(self, frame: bytes) -> None:
        self._cluster.own[self._number].append(frame)

    def write(self, effect: WriteCheckpoint) -> None:
        self._cluster.checkpoints[self._number] = replace(
            effect, coordinates=effect.coordinates.copy(), tail=Tail.of(effect.tail)
        )
        self._cluster.own[self._number].clear()
        self._cluster.give(self._number, CheckpointWritten(written=True))

    def read(self) -> None:
        if self._number not in self._cluster.slow_disks:
            found = self._cluster.read_checkpoint(self._number)
            self._cluster.give(self._number, CheckpointRead(found))

    # -- the trainer

    def deliver(self, body: bytes | bytearray) -> None:
        self._cluster.delivered[self._number] += 1

    def replica_replaced(self) -> None:
        pass

    def open_round(self, effect: OpenRound) -> None:
        self._cluster.round_opened(self._number, effect)

    def reject_contribution(self, words: str) -> None:
        self._cluster.share_refused(self._number, words)

    def answer_evaluation(self, answer: EvaluationAnswered) -> None:
        self._cluster.evaluation_answered(self._number, answer)

    # -- people

    def alert(self, words: str) -> None:
        self._cluster.alarms.append(words)

    def event(self, note: LogEvent) -> None:
        self._cluster.notes.append((self._number, note))

    def shutdown(self, effect: Shutdown) -> None:
        self._cluster.halts.append((self._number, effect))


class Cluster:
    """Nodes by number; `now` moves only by `tick`."""

    def __init__(
        self,
        size: int,
        *,
        log_budget_bytes: int = 1 << 24,
        two_nodes: str = "stall",
        mode: str = "async",
        shards: int = 0,
    ) -> None:
        self.now = 100.0
        self.log_budget_bytes = log_budget_bytes
        self.spec = make_spec(two_nodes, mode, shards)
        self.incarnations = [0] * size
        self.replicas: list[Replica | None] = [None] * size
        self.executors: dict[int, Executor] = {}
        self.queues: dict[tuple[int, int], deque[bytes]] = {}
        self.stuck: set[tuple[int, int]] = set()  # directions whose bytes do not leave the sender's memory
        self.reports: set[tuple[int, int]] = set()  # directions whose draining is to be reported
        self.drops: list[tuple[int, Drop]] = []
        self.halts: list[tuple[int, Shutdown]] = []
        self.alarms: list[str] = []
        self.delivered: list[int] = [0] * size
        self.notes: list[tuple[int, LogEvent]] = []
        self.votes: list[Votes] = [NO_VOTES] * size  # on each node's disk,
        self.checkpoints: list[WriteCheckpoint | None] = [None] * size  # its latest checkpoint,
        self.own: list[list[bytes]] = [[] for _ in range(size)]  # and its own updates since
        self.paused: set[int] = set()  # nodes whose next turn does not come by itself
        self.slow_disks: set[int] = set()  # nodes whose checkpoint is not read by itself
        for number in range(size):
            self.boot(number)

    def boot(self, number: int, *, from_disk: bool = False) -> Replica:
        """Start a node; with votes, checkpoint and own updates of its last lives if `from_disk`."""
        self.incarnations[number] += 1
        restored = self.read_checkpoint(number) if from_disk else None
        if restored is not None:
            restored = replace(restored, own=self.own[number].copy())
        replica = Replica(
            self.spec,
            me=Origin(number + 1, self.incarnations[number]),
            coordinates=self.initial() if restored is None else restored.coordinates,
            now=self.now,
            bootstrap_expect=len(self.replicas),
            votes=self.votes[number] if from_disk else NO_VOTES,
            restored=restored,
            log_budget_bytes=0,
            dense=self.memory(number),
            memory=self.closure_memory(number),
        )
        replica.log.budget_bytes = (
            self.log_budget_bytes
        )  # the real minimum, a few largest updates, is far too large here
        self.replicas[number] = replica
        ports = Ports(self, number)
        self.executors[number] = Executor(
            replica,
            network=ports,
            disk=ports,
            trainer=ports,
            log=ports,
            now=lambda: self.now,
            call_soon=ports.call_soon,
        )
        return replica

    def memory(self, number: int) -> DenseMemory | None:
        """What a trainer of this node shares with a dense ring."""
        return None

    def closure_memory(self, number: int) -> ClosureMemory | None:
        """What a trainer of this node shares in mode `closure`."""
        return None

    def initial(self) -> NDArray[np.int32]:
        return initial_coordinates(self.spec.shards)

    def round_opened(self, number: int, effect: OpenRound) -> None:
        """The trainer of this node may give its next share."""

    def evaluation_answered(self, number: int, answer: EvaluationAnswered) -> None:
        """The trainer of this node has what it waits for."""

    def share_refused(self, number: int, words: str) -> None:
        """What the trainer of this node gave does not fit."""

    def replica(self, number: int) -> Replica:
        replica = self.replicas[number]
        assert replica is not None
        return replica

    def kill(self, number: int) -> None:
        for other in range(len(self.replicas)):
            if (number, other) in self.queues:
                self.cut(number, other)
        self.replicas[number] = None
        del self.executors[number]

    def link(self, a: int, b: int) -> None:
        self.queues[a, b], self.queues[b, a] = deque(), deque()
        for here, there in ((a, b), (b, a)):
            self.give(here, LinkOpened(self.replica(there).me, f"node-{there}"))

    def link_all(self) -> None:
        for a, b in combinations(range(len(self.replicas)), 2):
            if (a, b) not in self.queues and self.replicas[a] is not None and self.replicas[b] is not None:
                self.link(a, b)

    def cut(self, a: int, b: int) -> None:
        del self.queues[a, b], self.queues[b, a]
        self.reports -= {(a, b), (b, a)}
        for here, there in ((a, b), (b, a)):
            self.give(here, LinkClosed(self.replica(there).me))

    def give(self, number: int, event: Event) -> list[Effect]:
        """Tell a replica what has happened, carry out what it orders, and return that."""
        return self.executors[number].handle(event)

    def read_checkpoint(self, number: int) -> Restored | None:
        saved = self.checkpoints[number]
        if saved is None:
            return None
        tail, copy = list(saved.tail), saved.coordinates.copy()
        more = saved.rounds, saved.covers, saved.rule_states
        return Restored(copy, saved.rows, saved.digest, tail, [], *more)

    def deliver(self, source: int, target: int) -> bool:
        """Pass one frame on; False if there is none."""
        queue = self.queues.get((source, target))
        if not queue or (source, target) in self.stuck:
            return False
        frame = queue.popleft()
        message = parse_peer_message(FrameType(frame[4]), frame[5:])
        if message is not None:
            self.give(target, FrameReceived(self.replica(source).me, message))
        if not queue and (source, target) in self.reports:
            self.reports.remove((source, target))
            self.give(source, LinkDrained(self.replica(target).me))
        return True

    def found(self) -> None:
        """Link all and let them agree on view 1."""
        self.link_all()
        self.tick(3.0)
        assert self.views() == [1] * len(self.replicas)

    def train(self, nodes: list[int], updates: int) -> None:
        """Each of the nodes makes so many updates, one in half a second."""
        for number in range(updates):
            for node in nodes:
                indices = [(7 * number + node) % 4000, 4000 + node]
                self.give(node, own_update(indices, steps=number + 1))
            self.settle()
            self.tick(0.5)

    def lose_log(self, number: int) -> None:
        """Trim all, whoever lacks it."""
        self.replica(number).log.trim(lambda origin: 2**64, lambda origin: 0, share=0.0)

    def views(self) -> list[int]:
        """The number of the view that each node alive knows."""
        return [replica.membership.view.number for replica in self.alive()]

    def all_ready(self) -> bool:
        return all(replica.ready for replica in self.alive())

    def alive(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica is not None]

    def noted(self, kind: str) -> list[tuple[int, str]]:
        """Who noted something of this kind, and in which words."""
        return [(number, note.words) for number, note in self.notes if note.kind == kind]

    def settle(self) -> None:
        """Deliver until nothing is on its way."""
        while sum(self.deliver(*direction) for direction in list(self.queues)):
            pass  # once more round all of them

    def tick(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            for number, replica in enumerate(self.replicas):
                if replica is not None:
                    self.give(number, TimePassed())
            self.settle()

    def assert_equal_at_equal_frontiers(self) -> None:
        alive = self.alive()
        for replica in alive:
            assert replica.lattice.recompute_digest() == replica.lattice.digest
        for one, other in combinations(alive, 2):
            if one.frontier.rows() == other.frontier.rows():
                assert one.lattice.digest == other.lattice.digest
                assert one.lattice.coordinates.tobytes() == other.lattice.coordinates.tobytes()

    def assert_converged(self) -> None:
        alive = self.alive()
        assert all(replica.frontier.rows() == alive[0].frontier.rows() for replica in alive)
        self.assert_equal_at_equal_frontiers()
