"""Dense rounds: float32 arrays are summed around the ring, bucket by bucket (RINGS.md, 28)."""

from __future__ import annotations

from functools import partial

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Alert, RejectContribution
from p2psgd.core.events import RingUpdate, RoundMessage
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.ring.chunks import CHANGED, NextWeights, Outgoing, count_numbers
from p2psgd.core.ring.reduce import Bucket, Buckets, DenseMemory, Reduction, bucket_of, name_difference
from p2psgd.core.ring.results import Result, Results
from p2psgd.core.ring.rounds import Completed, Generation, OnComplete
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import Outbound
from p2psgd.core.state import State
from p2psgd.wire.frames import Body
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import (
    CHANGES,
    RESULT_HOP,
    BucketContributed,
    ContributionMade,
    RingChunkHeader,
    check_ring_chunk,
    parse_ring_chunk,
)

# ----------------------------------------------------------------------------
# One dense round at one node, within one generation: its buckets as they are declared and given.


class DenseRound:
    """A dense round: `number` of the run, `declared` by the left neighbour so far. `others`: how many nodes'
    contributions but this one's are in the sums, once that is known. `empty`: this node gives nothing to it.
    `unsound`: what is wrong with this node's contribution, if something is; nothing goes on then.
    """

    def __init__(
        self,
        number: int,
        generation: Generation,
        declared: Buckets,
        *,
        memory: DenseMemory,
        half: bool,
        next_weights: NextWeights,
    ) -> None:
        self.number = number
        self.sums = number % 2  # the half of the sums that it goes into
        self.declared = declared
        self.reductions: list[Reduction] = []
        self.others: int | None = None
        self.empty = False
        self.unsound = ""
        self._generation = generation
        self._memory = memory
        self._half = half
        self._next_weights = next_weights
        self._whole = 0  # so many buckets from the first on are

    def reduction(self, place: int, bucket: Bucket) -> Reduction:
        """Return the reduction of a bucket that was given or declared, and make it if it is new."""
        if place == len(self.reductions):
            part = slice(bucket.offset, bucket.end)
            sums = self._memory.sums[self.sums][part]

            def take_final(start: int, end: int, contributors: int) -> None:
                if bucket.kind == CHANGES:
                    self._next_weights.take(bucket.offset + start, sums[start:end], contributors)

            given = self._memory.given(bucket.kind)[part]

            def tell_unsound(number: int) -> None:
                value = f"number {number} is {given[number]:g}, not finite"
                self.unsound = f"{bucket.describe()} is refused: {value}"

            self.reductions.append(
                Reduction(
                    given,
                    sums,
                    nodes=len(self._generation.order),
                    place=self._generation.place,
                    half=self._half,
                    on_final=take_final,
                    on_unsound=tell_unsound,
                )
            )
        return self.reductions[place]

    def declare(self, message: RingBucket) -> None:
        """Take the left neighbour's next bucket; PeerError if it cannot be."""
        if message.round != self.number or message.hop or message.contributors:
            words = (
                f"a bucket of round {message.round}, hop {message.hop}, was declared in round {self.number}"
            )
            raise PeerError(RejectCode.RING, words)
        if message.bucket != len(self.declared):
            words = f"bucket {message.bucket} was declared after {len(self.declared)} others"
            raise PeerError(RejectCode.RING, words)
        try:
            self.declared.add(bucket_of(message))
        except ValueError as error:
            raise PeerError(RejectCode.RING, str(error)) from None

    def check(self, header: RingChunkHeader, count: int) -> Reduction:
        """Return the reduction that the next `count` numbers belong to; PeerError if they cannot be."""
        if header.round != self.number:
            words = f"numbers of round {header.round} came in round {self.number}"
            raise PeerError(RejectCode.RING, words)
        if header.bucket >= len(self.declared):
            words = f"numbers came of bucket {header.bucket}, of {len(self.declared)} declared"
            raise PeerError(RejectCode.RING, words)
        reduction = self.reductions[header.bucket]
        reduction.check(header.hop, header.offset, count, header.contributors, self.others)
        return reduction

    def is_whole(self, buckets: Buckets) -> bool:
        """Return whether all sums are here, of `buckets` and no more to come."""
        while self._whole < len(self.reductions) and self.reductions[self._whole].whole:
            self._whole += 1
        return buckets.whole and self._whole == len(buckets)

    @property
    def heard(self) -> int:
        """The number of nodes to the left that are known to have given all that this node can know of."""
        if self._whole == len(self.reductions):
            return 0
        return self.reductions[self._whole].heard


# ----------------------------------------------------------------------------
# The rounds of a dense ring: float32 arrays are summed around it, bucket by bucket.
#
# Each node declares a bucket to its right neighbour before the bucket's first numbers (chunks.py); what goes
# through the ring is in reduce.py, the new weights are made in chunks.py, and what a member gets that was
# cut off from a round which others completed is in results.py. A round is complete as a whole, or nothing of
# it is kept but this node's own share.
#
# What is sent is memory that others write: shares until this node's trainer is given the next round, sums
# until the round after the next. By then the right neighbour has read it: no round is complete anywhere
# before each node has sent its part in it, and each sends its part only after it has received all of the
# round before. What a generation that was stopped has left in a link is dropped by its tag, unread.
#
# Not here: when a ring is formed and given up, and when the trainer may give its next share (OpenRound).


class DenseRounds:
    """The rounds of a dense ring. `request_stop`: why the generation could not go on, empty if it can; it has
    stopped here then, and the ring reports that to the others.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        memory: DenseMemory,
        *,
        node: Node,
        scanner: SliceScanner,
        out: Outbound,
        on_complete: OnComplete,
    ) -> None:
        self.request_stop = ""
        self._cluster = cluster
        self._state = state
        self._scanner = scanner
        self._out = out
        self.memory = memory
        self._on_complete = on_complete
        self._half = parse_mode(state.spec.mode).half
        self._next_weights = NextWeights(state)
        self._results = Results(
            state,
            memory,
            self._next_weights,
            node=node,
            scanner=scanner,
            out=out,
            timing=cluster.timing,
        )
        self._done = state.frontier.round
        self._active = False
        self._own = self._no_buckets()
        self._own_used = False  # all of it went into the round after `done`, in the last generation
        self._unlike = 0, 0.0  # the last round in which it was refused for being so, and when first
        self._generation: Generation | None = None
        self._round: DenseRound | None = None  # both of them, and this too, or none
        self._outgoing: Outgoing | None = None

    # -- what others look at

    @property
    def done(self) -> int:
        self._look_at_replica()
        return self._done

    @property
    def contributed(self) -> bool:
        self._look_at_replica()
        return self._own.whole or (self._round is not None and self._round.empty)

    @property
    def missing(self) -> list[Origin]:
        """Return them as far as can be known: what comes has gone through all those to the left that have
        given, up to the first that has not.
        """
        generation, current = self._generation, self._round
        if generation is None or current is None:
            return []
        known = {generation.place} if self.contributed else set()
        known |= {(generation.place - 1 - back) % len(generation.order) for back in range(current.heard)}
        return [member for place, member in enumerate(generation.order) if place not in known]

    # -- generations

    def fits(self, first: int) -> bool:
        lacks_sums = self.done == first - 2 and self._own_used
        return self.done < first and not lacks_sums

    def begin(self, generation: Generation, first: int, now: float) -> None:
        self.stop()
        self._catch_up(first - 1)
        self.request_stop, self._own_used = "", False
        self._results.withdraw()
        self._generation, self._outgoing = generation, Outgoing(generation, self._out)
        self._begin_round(generation, now)
        self._go_on(now)

    def stop(self) -> None:
        self._generation = self._round = self._outgoing = None

    def activate(self, active: bool, now: float) -> None:
        self._active = active
        if active:
            return
        if self._own.all and not self._own.whole:
            self._drop_share()
            if self._round is not None and not self._round.empty:
                self._fail("the trainer left before its share was whole")
        self._give_nothing(now)
        self._go_on(now)

    def tick(self, now: float) -> None:
        self._give_nothing(now)
        self._go_on(now)

    def _look_at_replica(self) -> None:
        """Notice a snapshot that has replaced the replica."""
        self._catch_up(self._state.frontier.round)

    def _catch_up(self, done: int) -> None:
        """Note that the replica is that of after round `done`. If others completed the round into which this
        node's contribution went last, it is in the replica, or was given up with an earlier incarnation of
        this node.
        """
        if done <= self._done:
            return
        self._done = done
        self._results.withdraw()
        if self._own_used and self._own.of_array:
            array = self._own.all[0].describe()
            self._out.emit(
                RejectContribution(f"others summed array {array} in a round that this node missed")
            )
        if self._own_used:
            self._drop_share()

    def _begin_round(self, generation: Generation, now: float) -> None:
        self._next_weights.begin()
        self._round = DenseRound(
            self._done + 1,
            generation,
            self._no_buckets(),
            memory=self.memory,
            half=self._half,
            next_weights=self._next_weights,
        )
        for place in range(len(self._own)):
            self._give(self._round, place, now)

    def _no_buckets(self) -> Buckets:
        return Buckets(self._state.spec.weights, len(self.memory.shares))

    # -- this node's share

    def share(self, event: ContributionMade | BucketContributed, now: float) -> None:
        assert isinstance(event, BucketContributed), event
        self._look_at_replica()
        try:
            if self._own.whole:
                raise ValueError(f"{event.name!r} came after the whole share of round {self._done + 1}")
            self._own.add(bucket_of(event))
        except ValueError as error:
            self._refuse(str(error))
            return
        if self._round is not None and not self._round.empty:
            self._give(self._round, len(self._own) - 1, now)
        self._go_on(now)

    def _give(self, current: DenseRound, place: int, now: float) -> None:
        """Let bucket `place` of the own share go into the round, if it is what the left neighbour says."""
        if self._fits(current, place, now):
            self._own_used = self._own.whole
            self._put(current, place, self._own.all[place], own=True)

    def _put(self, current: DenseRound, place: int, bucket: Bucket, *, own: bool) -> None:
        assert self._outgoing is not None
        reduction = current.reduction(place, bucket)
        reduction.own = own
        self._outgoing.add(current.number, place, bucket, reduction)

    def _give_nothing(self, now: float) -> None:
        """Put an empty contribution into a round that the left neighbour has begun, if there is no trainer.
        But if the trainer was refused because its contribution is not like the left neighbour's, no matter
        which of the two is wrong, it has a failure timeout to come back: passed on, the other's contribution
        would have the next ones refused too. Not a failure timeout each time: an unlike contribution that no
        other node refuses would hold the round up for good.
        """
        current = self._round
        if current is None or self._active or self._own.all or current.empty:
            return
        number, refused_at = self._unlike
        if number == current.number and now - refused_at < self._cluster.timing.failure_timeout_s:
            return
        current.empty = bool(current.declared.all)
        for place, bucket in enumerate(current.declared.all):
            self._put(current, place, bucket, own=False)

    def _fits(self, current: DenseRound, place: int, now: float) -> bool:
        """Return whether this node gives what its left neighbour declares, as far as both are known; if not,
        refuse the share.
        """
        assert self._generation is not None, "a round is one of a generation"
        if place >= min(len(self._own), len(current.declared)):
            return True
        own, other = self._own.all[place], current.declared.all[place]
        if own == other:
            return True
        if self._unlike[0] != current.number:
            self._unlike = current.number, now
        name = self._cluster.name_of(self._generation.left)
        self._refuse(name_difference(place, current.number, own, other, name))
        return False

    def _refuse(self, words: str) -> None:
        self._out.emit(RejectContribution(words))
        self._out.emit(Alert(words))
        self._drop_share()
        self._fail(words)

    def _drop_share(self) -> None:
        self._own, self._own_used = self._no_buckets(), False

    def _fail(self, words: str) -> None:
        if self._generation is not None:
            self.stop()
            self.request_stop = words

    # -- peers

    def on_message(self, peer: Peer, message: RoundMessage, now: float) -> None:
        if isinstance(message, RingUpdate):
            raise PeerError(RejectCode.RING, "an update of a round came in a dense ring, which has none")
        self._look_at_replica()
        if isinstance(message, RingBucket):
            self._hear_bucket(peer, message, now)
        else:
            self._hear_chunk(peer, message.body, now)
        self._go_on(now)

    def _is_current(self, peer: Peer, view: int, number: int) -> bool:
        generation = self._generation
        tag = peer.origin, view, number
        return generation is not None and tag == (generation.left, generation.view, generation.number)

    def _hear_bucket(self, peer: Peer, message: RingBucket, now: float) -> None:
        if message.hop == RESULT_HOP:
            if self._generation is None:
                self._results.hear_bucket(peer, message, self.done)
            return
        current = self._round
        if current is None or not self._is_current(peer, message.view, message.generation):
            return
        current.declare(message)
        place = message.bucket
        if current.empty:
            self._put(current, place, current.declared.all[place], own=False)
        elif self._fits(current, place, now):
            current.reduction(place, current.declared.all[place])
            self._give_nothing(now)

    def _hear_chunk(self, peer: Peer, body: Body, now: float) -> None:
        header, numbers = parse_ring_chunk(body)
        if header.hop == RESULT_HOP:
            if self._generation is None:
                result = self._results.hear_chunk(peer, header, numbers, body, now)
                if result is not None:
                    self._finish(result, now, own=self._own_used)
            return
        current = self._round
        if current is None or not self._is_current(peer, header.view, header.generation):
            return
        reduction = current.check(header, count_numbers(numbers, half=self._half))
        reduction.take(numbers, header.contributors, partial(check_ring_chunk, body))
        if current.others is None:
            current.others = reduction.others

    def drained(self, peer: Peer, now: float) -> None:
        self._results.push(peer, now)
        self._go_on(now)

    def give_result(self, peer: Peer, now: float) -> None:
        if self._generation is None:
            self._results.give(peer, self.done, now)

    # -- going on

    def _go_on(self, now: float) -> None:
        """Send what can be sent, and complete what is whole."""
        while self._generation is not None and self._outgoing is not None:
            right = self._cluster.peers.get(self._generation.right)
            if right is not None:
                self._outgoing.push(right)
            if self._round is not None and self._round.unsound:
                self._refuse(self._round.unsound)
                return
            if not self._complete(self._generation, now):
                return

    def _complete(self, generation: Generation, now: float) -> bool:
        """Complete the round under way, if all of it is here."""
        current = self._round
        assert current is not None
        buckets = current.declared if current.empty else self._own
        if not current.is_whole(buckets):
            return False
        if not buckets.of_array and not self._next_weights.is_sound(self._scanner, self._out, now):
            self._fail(CHANGED)
            return False
        contributors = (current.others or 0) + (not current.empty)
        tag = generation.view, generation.number, current.number, contributors
        self._finish(Result(*tag, buckets), now, own=not current.empty)
        return True

    def _finish(self, result: Result, now: float, *, own: bool) -> None:
        """Complete a round whose result is here, as one step, and begin the next."""
        if not result.buckets.of_array:
            self._next_weights.complete(view=result.view, number=result.number)
        self._done = result.number
        if own:
            self._drop_share()
        self._results.keep(result)
        if self._generation is not None:
            self._begin_round(self._generation, now)
        self._on_complete(Completed(result.number, result.contributors, own, result.number % 2), now)
