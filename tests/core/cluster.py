"""Replicas in one process, joined by queues in place of sockets: the harness of the core's tests.

Links are FIFO in each direction and can be cut, which loses what is on its way. At the end
`assert_equal_at_equal_frontiers` must hold for every test; the fixture in conftest.py sees to it.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alarm, Deliver, Drop, Effect, Halt, ReportDrained, Send
from p2psgd.core.events import (
    Event,
    GapReceived,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    NeedReceived,
    OwnUpdateMade,
    StatusReceived,
    TimePassed,
    UpdateReceived,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import Gap, Goodbye, Need, Status, parse_frontier, parse_message

WEIGHTS = 5000


def initial_coordinates() -> NDArray[np.int32]:
    return np.arange(-WEIGHTS // 2, WEIGHTS - WEIGHTS // 2, dtype=np.int32)


def make_spec() -> RunSpec:
    initial = hash_coordinates(initial_coordinates())
    return RunSpec((("hidden", (40, 100)), ("output", (1000,))), -20, "async", "test", initial)


def make_words(indices: list[int], negative: bool = False) -> NDArray[np.uint32]:
    return np.array([index << 1 | negative for index in sorted(indices)], dtype=np.uint32)


def own_update(
    indices: list[int], *, step: int = 3, negative: bool = False, mini_batch: int = 1
) -> OwnUpdateMade:
    words = make_words(indices, negative)
    return OwnUpdateMade(mini_batch, step, codec.encode(words, WEIGHTS), words)


class Cluster:
    """Nodes by number; `now` moves only by `pass_time`."""

    def __init__(self, size: int, *, log_budget_bytes: int = 1 << 24) -> None:
        self.now = 100.0
        self.log_budget_bytes = log_budget_bytes
        self.spec = make_spec()
        self.lives = [0] * size
        self.replicas: list[Replica | None] = [None] * size
        self.queues: dict[tuple[int, int], deque[bytes]] = {}
        self.stuck: set[tuple[int, int]] = set()  # directions whose bytes do not leave the sender's memory
        self.reports: set[tuple[int, int]] = set()  # directions whose draining is to be reported
        self.drops: list[tuple[int, Drop]] = []
        self.halts: list[tuple[int, str]] = []
        self.alarms: list[str] = []
        self.delivered: list[int] = [0] * size
        for number in range(size):
            self.boot(number)

    def boot(self, number: int) -> Replica:
        self.lives[number] += 1
        replica = Replica(
            self.spec,
            me=Origin(number + 1, self.lives[number]),
            coordinates=initial_coordinates(),
            log_budget_bytes=0,
        )
        replica.log.budget_bytes = (
            self.log_budget_bytes
        )  # the real minimum, a few largest updates, is far too large here
        self.replicas[number] = replica
        return replica

    def replica(self, number: int) -> Replica:
        replica = self.replicas[number]
        assert replica is not None
        return replica

    def kill(self, number: int) -> None:
        for other in range(len(self.replicas)):
            if (number, other) in self.queues:
                self.cut(number, other)
        self.replicas[number] = None

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
        effects = self.replica(number).handle(event, self.now)
        for effect in effects:
            match effect:
                case Send():
                    self.queues[number, effect.peer.node - 1].append(effect.frame)
                case ReportDrained():
                    self.reports.add((number, effect.peer.node - 1))
                case Deliver():
                    self.delivered[number] += 1
                case Drop():
                    self.drops.append((number, effect))
                case Halt():
                    self.halts.append((number, effect.words))
                case Alarm():
                    self.alarms.append(effect.words)
        return effects

    def deliver(self, source: int, target: int) -> bool:
        """Pass one frame on; False if there is none."""
        queue = self.queues.get((source, target))
        if not queue or (source, target) in self.stuck:
            return False
        frame = queue.popleft()
        event = event_of(self.replica(source).me, FrameType(frame[4]), frame[5:])
        if event is not None:
            self.give(target, event)
        if not queue and (source, target) in self.reports:
            self.reports.remove((source, target))
            self.give(source, LinkDrained(self.replica(target).me))
        return True

    def settle(self) -> None:
        """Deliver until nothing is on its way."""
        while sum(self.deliver(*direction) for direction in list(self.queues)):
            pass  # once more round all of them

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            for number, replica in enumerate(self.replicas):
                if replica is not None:
                    self.give(number, TimePassed())
            self.settle()

    def assert_equal_at_equal_frontiers(self) -> None:
        alive = [replica for replica in self.replicas if replica is not None]
        for replica in alive:
            assert replica.lattice.recompute_digest() == replica.lattice.digest
        for one, other in combinations(alive, 2):
            if one.frontier.rows() == other.frontier.rows():
                assert one.lattice.digest == other.lattice.digest
                assert one.lattice.coordinates.tobytes() == other.lattice.coordinates.tobytes()

    def assert_converged(self) -> None:
        alive = [replica for replica in self.replicas if replica is not None]
        assert all(replica.frontier.rows() == alive[0].frontier.rows() for replica in alive)
        self.assert_equal_at_equal_frontiers()


def event_of(peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> Event | None:
    """What a linked peer's frame means to the replica, as in node.py; None for GOODBYE, which the daemon
    keeps for its status; PeerError if the body is not what its type says.
    """
    if frame_type is FrameType.UPDATE:
        return UpdateReceived(peer, body)
    message = parse_message(frame_type, body)
    match message:
        case Status():
            return StatusReceived(peer, parse_frontier(message.frontier), message.loop_lag_ms)
        case Need():
            return NeedReceived(peer, Origin(message.node, message.incarnation), message.first, message.last)
        case Gap():
            return GapReceived(peer, Origin(message.node, message.incarnation), message.floor)
        case Goodbye():
            return None
    raise AssertionError(message)
