"""The result of a dense round for members that were cut off from it when others completed it.

A round may be complete at one node and not at its neighbour when a generation stops; then no node goes on
before all have it. The sums of the last completed round lie where they were made until the round after the
next begins, so any node that has them can give them. What is taken is checked like a snapshot: the weights
that come out must have the digest that the giver's STATUS reports.

A node that lacks more than one round takes a snapshot instead. Which node gives is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from p2psgd.core.effects import Alert, LogEvent
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.ring import chunks
from p2psgd.core.ring.chunks import NextWeights, count_numbers, declaration, send_chunk
from p2psgd.core.ring.reduce import Buckets, DenseMemory, bucket_of, travelling
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import Outbound
from p2psgd.core.state import U64_MODULUS, State
from p2psgd.core.timing import Timing
from p2psgd.wire.frames import Body
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import CHANGES, RESULT_HOP, RingChunkHeader, check_ring_chunk


@dataclass(frozen=True, slots=True)
class Result:
    """The result of round `number`, completed in generation `generation` of `view`; its sums lie in half
    number % 2.
    """

    view: int
    generation: int
    number: int
    contributors: int
    buckets: Buckets


@dataclass(slots=True)
class _Feed:
    """A result on its way to a peer."""

    peer: Peer
    number: int
    pieces: Iterator[None]  # each step sends one
    moved: float


@dataclass(slots=True)
class _Intake:
    """A result on its way in, of `giver`, with the buckets that were declared so far."""

    giver: Origin
    result: Result
    taken: int = 0  # numbers of the last bucket

    @property
    def bucket_is_whole(self) -> bool:
        """Return whether the next bucket may be declared."""
        buckets = self.result.buckets
        return not buckets.all or self.taken == buckets.all[-1].count

    def is_of(self, peer: Peer, view: int, generation: int, number: int) -> bool:
        """Return whether a frame of `peer` with this tag belongs to this result."""
        tag = self.giver, self.result.view, self.result.generation, self.result.number
        return tag == (peer.origin, view, generation, number)


class Results:
    """The last result: kept, given to any number of peers, and taken from one at a time."""

    def __init__(
        self,
        state: State,
        memory: DenseMemory,
        next_weights: NextWeights,
        *,
        node: Node,
        scanner: SliceScanner,
        out: Outbound,
        timing: Timing,
    ) -> None:
        self._state = state
        self._memory = memory
        self._next_weights = next_weights
        self._node = node
        self._scanner = scanner
        self._out = out
        self._timing = timing
        self._half = parse_mode(state.spec.mode).half
        self._kept: Result | None = None
        self._feeds: dict[Origin, _Feed] = {}
        self._intake: _Intake | None = None

    def keep(self, result: Result) -> None:
        """Keep the result of the last completed round."""
        self._kept, self._intake = result, None
        self._feeds.clear()

    def withdraw(self) -> None:
        """Stop giving and taking, as a new generation begins: all members have the last round. It is kept all
        the same.
        """
        self._intake = None
        self._feeds.clear()

    # -- giving

    def give(self, peer: Peer, done: int, now: float) -> None:
        """Give the result to a peer that lacks round `done` and only that, if it is here; again after a
        failure timeout in which it has taken nothing.
        """
        kept, feed = self._kept, self._feeds.get(peer.origin)
        if kept is None or kept.number != done:
            return
        if feed is not None and feed.peer is peer and now - feed.moved < self._timing.failure_timeout_s:
            return
        words = f"sending {peer.name} the result of round {done}, from which it was cut off"
        self._out.emit(LogEvent("result given", words, peer.origin.node))
        self._feeds[peer.origin] = _Feed(peer, done, self._produce(peer, kept), now)
        self.push(peer, now)

    def push(self, peer: Peer, now: float) -> None:
        """Go on giving while there is credit."""
        feed = self._feeds.get(peer.origin)
        while feed is not None and feed.peer is peer and peer.credit > 0:
            try:
                next(feed.pieces)
            except StopIteration:
                return
            feed.moved = now

    def _produce(self, peer: Peer, kept: Result) -> Iterator[None]:
        out, sums = self._out, self._memory.sums[kept.number % 2]
        tag, count = (kept.view, kept.generation), kept.contributors
        for place, bucket in enumerate(kept.buckets.all):
            out.send_message(
                peer,
                declaration(*tag, kept.number, place, bucket, hop=RESULT_HOP, contributors=count),
            )
            for start in range(0, bucket.count, chunks.SEGMENT_NUMBERS):
                end = min(start + chunks.SEGMENT_NUMBERS, bucket.count)
                header = RingChunkHeader(*tag, kept.number, place, RESULT_HOP, start, count)
                numbers = sums[bucket.offset + start : bucket.offset + end]
                send_chunk(out, peer, header, travelling(numbers, half=self._half))
                yield

    # -- taking

    def hear_bucket(self, peer: Peer, message: RingBucket, done: int) -> None:
        """Take in the next bucket of a result that a peer declares; the first begins anew. A bucket that is
        not needed, or not what the peer's STATUS reports, is passed over.
        """
        if message.round != done + 1 or self._node.quarantined or message.contributors < 1:
            return
        if message.bucket == 0:
            buckets = Buckets(self._state.spec.weights, len(self._memory.shares))
            tag = message.view, message.generation, message.round, message.contributors
            self._intake = _Intake(peer.origin, Result(*tag, buckets))
            self._next_weights.begin()
        intake = self._intake
        if intake is None or not intake.is_of(peer, message.view, message.generation, message.round):
            return
        buckets = intake.result.buckets
        if message.bucket != len(buckets) or not intake.bucket_is_whole:
            words = f"bucket {message.bucket} of a result came after {len(buckets)} others"
            raise PeerError(RejectCode.RING, f"{words}, the last with {intake.taken} numbers")
        try:
            buckets.add(bucket_of(message))
        except ValueError as error:
            raise PeerError(RejectCode.RING, f"a result was refused: {error}") from None
        intake.taken = 0
        sequence = self._state.frontier.sequence_after(message.view, message.round)
        if message.kind == CHANGES and peer.has(RING) != sequence:
            self._intake = None

    def hear_chunk(
        self, peer: Peer, header: RingChunkHeader, numbers: memoryview, body: Body, now: float
    ) -> Result | None:
        """Take in the next numbers; return the result once it is whole and right, to be completed at once."""
        if self._node.quarantined:
            self._intake = None
        intake = self._intake
        if intake is None or not intake.is_of(peer, header.view, header.generation, header.round):
            return None
        result = intake.result
        count = count_numbers(numbers, half=self._half)
        bucket = result.buckets.all[-1]
        place = len(result.buckets) - 1, intake.taken, result.contributors
        end = header.offset + count
        if (header.bucket, header.offset, header.contributors) != place or end > bucket.count:
            words = f"numbers {header.offset} to {end} of bucket {header.bucket} of a result"
            raise PeerError(RejectCode.RING, f"{words} came where {place[1]} of bucket {place[0]} belong")
        check_ring_chunk(body)
        target = self._memory.sums[result.number % 2][bucket.offset + header.offset : bucket.offset + end]
        target[:] = np.frombuffer(numbers, "<f2" if self._half else "<f4")
        if bucket.kind == CHANGES:
            self._next_weights.take(bucket.offset + header.offset, target, result.contributors)
        intake.taken += count
        if not (intake.bucket_is_whole and result.buckets.whole):
            return None
        self._intake = None
        return result if self._is_right(peer, result, now) else None

    def _is_right(self, peer: Peer, result: Result, now: float) -> bool:
        """Return whether its weights are those of the giver; PeerError if they are not, and those here are
        not to blame.
        """
        if result.buckets.of_array:
            return True
        if not self._next_weights.is_sound(self._scanner, self._out, now):
            return False
        row = (peer.status or {}).get(RING)
        digest = (self._next_weights.digest - self._state.lattice.initial_digest) % U64_MODULUS
        sequence = self._state.frontier.sequence_after(result.view, result.number)
        if row is not None and row.sequence == sequence:
            if row.digest == digest:
                return True
            words = f"the result of round {result.number} that {peer.name} gave does not make its weights"
            self._out.emit(Alert(words))
            raise PeerError(RejectCode.DIGEST, words)
        return False
