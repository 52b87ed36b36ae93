"""Dense rounds of several nodes, joined by queues in place of sockets.

Memory that is sent is read when it is delivered, as late as it can be: what was overwritten before that shows
by its checksum. A trainer spoils its shares as soon as it may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alert, LogEvent, RejectContribution, ReportDrained, Send, SendFloats
from p2psgd.core.events import LinkOpened, RingChunk, parse_peer_message
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.ring.dense import DenseRounds
from p2psgd.core.ring.reduce import DenseMemory, make_dense_memory
from p2psgd.core.ring.rounds import Completed, Generation
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.ring_messages import ARRAY, CHANGES, BucketContributed
from p2psgd.wire.update import weights_of

Numbers = NDArray[np.float32]
Cut = Sequence[tuple[int, int]]  # offset and count of each bucket, in the order in which they are given

NOW = 50.0


def dense_spec(weights: int, *, half: bool = False) -> RunSpec:
    initial = hash_coordinates(initial_weights(weights).view(np.int32))
    mode = "ring-dense-float16" if half else "ring-dense"
    return RunSpec((("w", (weights,)),), -20, mode, "test", initial, "stall")


def initial_weights(weights: int) -> Numbers:
    return np.linspace(-1, 1, weights, dtype=np.float32)


@dataclass(frozen=True)
class Begin:
    """Stands for a RING_BEGIN."""

    generation: Generation
    first: int


@dataclass
class Node:
    """One node and its trainer."""

    replica: Replica
    rounds: DenseRounds
    memory: DenseMemory
    active: bool = True
    to_give: deque[tuple[BucketContributed, Numbers]] = field(default_factory=deque)
    completed: list[Completed] = field(default_factory=list)
    results: list[Numbers] = field(default_factory=list)  # the sums of each completed round, whole
    refusals: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    bytes_sent: int = 0
    stopped: int = 0  # the generation that it stopped last

    @property
    def me(self) -> Origin:
        return self.replica.me

    @property
    def weights(self) -> Numbers:
        spec = self.replica.spec
        return weights_of(self.replica.lattice.coordinates, mode=spec.mode, quantum_log2=-20)


class Circle:
    """Nodes by number; all are linked to all."""

    def __init__(self, size: int, weights: int, *, half: bool = False, credit_bytes: int = 1 << 20) -> None:
        self.nodes = [self._make(number, weights, half, credit_bytes) for number in range(size)]
        self.links: dict[tuple[int, int], deque[Send | SendFloats | ReportDrained | Begin]] = {
            (source, target): deque() for source in range(size) for target in range(size)
        }
        self.generations = 0
        self.now = NOW
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.replica.handle(LinkOpened(other.me, name(other.me)), NOW)
            for peer in node.replica.peers.values():
                node.replica.out.refill(peer)

    def _make(self, number: int, weights: int, half: bool, credit_bytes: int) -> Node:
        spec, memory = dense_spec(weights, half=half), make_dense_memory(weights)
        replica = Replica(
            spec,
            me=Origin(number + 1, 1),
            coordinates=initial_weights(weights).view(np.int32),
            now=NOW,
            credit_bytes=credit_bytes,
        )
        rounds = DenseRounds(
            replica.cluster,
            replica.state,
            memory,
            node=replica.node,
            scanner=replica.scanner,
            out=replica.out,
            on_complete=lambda done, _: self._complete(number, done),
        )
        rounds.activate(True, NOW)
        return Node(replica, rounds, memory)

    def _complete(self, number: int, done: Completed) -> None:
        node = self.nodes[number]
        node.completed.append(done)
        node.results.append(node.memory.sums[done.sums].copy())
        if done.own:
            node.memory.shares[:] = node.memory.arrays[:] = np.nan  # the trainer's again

    # -- trainers

    def sleep(self, number: int) -> None:
        """Without a trainer."""
        self.nodes[number].active = False
        self.nodes[number].rounds.activate(False, self.now)
        self.collect(number)

    def plan(self, number: int, share: Numbers, cut: Cut, *, kind: int = CHANGES, call: str = "w") -> None:
        """The next share of this node's trainer, to be given bucket by bucket."""
        for place, (offset, count) in enumerate(cut):
            bucket = BucketContributed(kind, offset, count, f"{call}.{place}", f"({count},)")
            self.nodes[number].to_give.append((bucket, share[offset : offset + count]))

    def give(self, number: int) -> None:
        """The trainer's next bucket."""
        node = self.nodes[number]
        bucket, share = node.to_give.popleft()
        node.memory.given(bucket.kind)[bucket.offset : bucket.offset + bucket.count] = share
        node.rounds.share(bucket, self.now)
        self.collect(number)

    def may_give(self, number: int) -> bool:
        node = self.nodes[number]
        return bool(node.to_give) and not node.rounds.contributed

    # -- generations

    def begin(self, order: Sequence[int], *, view: int = 1) -> None:
        """The first of `order` begins the next generation; the others do as its word goes around."""
        self.generations += 1
        incarnations = tuple(self.nodes[number].me for number in order)
        first = 1 + max(self.nodes[number].rounds.done for number in order)
        self._begin(order[0], Begin(Generation(view, self.generations, incarnations, 0), first))

    def _begin(self, number: int, begin: Begin) -> None:
        generation = begin.generation
        if generation.number <= self.nodes[number].stopped:
            return
        right = generation.right.node - 1
        if generation.place < len(generation.order) - 1:
            there = Generation(generation.view, generation.number, generation.order, generation.place + 1)
            self.links[number, right].append(Begin(there, begin.first))
        self.nodes[number].rounds.begin(generation, begin.first, self.now)
        self.collect(number)

    def stop(self, number: int) -> None:
        """It takes no part any more in this generation."""
        self.nodes[number].stopped = self.generations
        self.nodes[number].rounds.stop()

    def make_equal(self, members: Sequence[int], random: Random) -> None:
        """Who has the last round gives its result to who lacks it."""
        done = max(self.nodes[number].rounds.done for number in members)
        giver = min(number for number in members if self.nodes[number].rounds.done == done)
        for number in members:
            node = self.nodes[number]
            if node.rounds.done < done:
                there = self.nodes[giver].replica.peers[node.me]
                rows = {Origin(*row[:2]): row for row in self.nodes[giver].replica.frontier.rows()}
                node.replica.peers[self.nodes[giver].me].status = rows
                self.nodes[giver].rounds.give_result(there, self.now)
                self.collect(giver)
        self.run(random)
        assert {self.nodes[number].rounds.done for number in members} == {done}

    # -- links

    def collect(self, number: int) -> None:
        """Carry out what a node has ordered."""
        node = self.nodes[number]
        for effect in node.replica.out.take():
            match effect:
                case Send() | SendFloats() | ReportDrained():
                    self.links[number, effect.peer.node - 1].append(effect)
                case RejectContribution():
                    node.refusals.append(effect.words)
                    node.to_give.clear()
                case Alert():
                    node.alarms.append(effect.words)
                case LogEvent():
                    pass
                case _:
                    raise AssertionError(effect)

    def deliver(self, source: int, target: int) -> None:
        """The next of what is under way on a link."""
        event = self.links[source, target].popleft()
        there, here = self.nodes[source], self.nodes[target]
        match event:
            case Begin():
                self._begin(target, event)
                return
            case ReportDrained():
                peer = there.replica.peers[here.me]
                there.replica.out.refill(peer)
                there.rounds.drained(peer, self.now)
                self.collect(source)
                return
            case SendFloats():
                frame = event.head + bytes(event.numbers)
            case Send():
                frame = event.frame
        there.bytes_sent += len(frame)
        self.on_message(source, target, frame)

    def on_message(self, source: int, target: int, frame: bytes) -> None:
        """One node is given a frame of another's."""
        length, kind = PREFIX.unpack_from(frame)
        assert length == len(frame) - PREFIX.size
        message = parse_peer_message(FrameType(kind), frame[PREFIX.size :])
        assert isinstance(message, RingBucket | RingChunk), message
        here = self.nodes[target]
        here.rounds.on_message(here.replica.peers[self.nodes[source].me], message, self.now)
        self.collect(target)

    def step(self, random: Random) -> bool:
        """Something happens somewhere; False if nothing can."""
        moves: list[tuple[int, ...]] = [link for link, queue in self.links.items() if queue]
        moves += [(number,) for number in range(len(self.nodes)) if self.may_give(number)]
        if not moves:
            return False
        move = random.choice(moves)
        if len(move) == 2:
            self.deliver(*move)
        else:
            self.give(*move)
        return True

    def run(self, random: Random) -> None:
        """Until nothing is left to happen."""
        while self.step(random):
            pass


def name(origin: Origin) -> str:
    return f"node-{origin.node - 1}"


def cut_evenly(weights: int, buckets: int) -> list[tuple[int, int]]:
    """The last weights first, as back-propagation gives them."""
    edges = [weights * place // buckets for place in range(buckets + 1)]
    cut = [(start, end - start) for start, end in pairwise(edges) if end > start]
    return cut[::-1]


def make_shares(random: np.random.Generator, weights: int, rounds: int) -> Iterator[Numbers]:
    """Of one trainer, of many magnitudes."""
    for _ in range(rounds):
        magnitude = np.exp(random.normal(0, 3, weights))
        yield (random.normal(0, 1, weights) * magnitude).astype(np.float32)


def ring_sum(shares: Sequence[Numbers | None], cut: Cut, *, half: bool = False) -> Numbers:
    """What must come of the shares of the nodes in the ring's order, to the bit."""
    nodes = len(shares)
    weights = max(offset + count for offset, count in cut)
    result = np.zeros(weights, np.float32)
    for offset, count in cut:
        for chunk in range(nodes):
            part = slice(offset + count * chunk // nodes, offset + count * (chunk + 1) // nodes)
            total: Numbers | None = None
            for step in range(nodes):
                share = shares[(chunk + step) % nodes]
                if share is not None:
                    total = share[part] if total is None else total + share[part]
                if half and total is not None:
                    total = total.astype(np.float16).astype(np.float32)
            if total is not None:
                result[part] = total
    return result


__all__ = ["ARRAY", "CHANGES", "Circle", "cut_evenly", "make_shares", "ring_sum"]
