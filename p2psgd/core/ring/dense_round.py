"""One dense round at one node, within one attempt: its buckets as they are declared and given."""

from __future__ import annotations

from p2psgd.core.dense_memory import CHANGES, DenseMemory
from p2psgd.core.ring.attempt import Attempt
from p2psgd.core.ring.bucket import Bucket, Buckets, bucket_of
from p2psgd.core.ring.next_weights import NextWeights
from p2psgd.core.ring.reduction import Reduction
from p2psgd.errors import PeerError
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.ring import RingChunkHeader


class DenseRound:
    """`number` of the run; `declared` by the left neighbour so far. `others`: how many nodes' shares but this
    one's are in the sums, once that is known. `empty`: this node gives nothing to it. `unsound`: what is
    wrong with this node's share, if something is; nothing goes on then.
    """

    def __init__(
        self,
        number: int,
        attempt: Attempt,
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
        self._attempt = attempt
        self._memory = memory
        self._half = half
        self._next_weights = next_weights
        self._whole = 0  # so many buckets from the first on are

    def reduction(self, place: int, bucket: Bucket) -> Reduction:
        """That of a bucket which was given or declared, maybe now."""
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
                    nodes=len(self._attempt.order),
                    place=self._attempt.place,
                    half=self._half,
                    on_final=take_final,
                    on_unsound=tell_unsound,
                )
            )
        return self.reductions[place]

    def declare(self, message: RingBucket) -> None:
        """The left neighbour's next bucket; PeerError if it cannot be."""
        if message.round != self.number or message.hop or message.contributors:
            words = (
                f"a bucket of round {message.round}, hop {message.hop}, was declared in round {self.number}"
            )
            raise PeerError("ring", words)
        if message.bucket != len(self.declared):
            words = f"bucket {message.bucket} was declared after {len(self.declared)} others"
            raise PeerError("ring", words)
        try:
            self.declared.add(bucket_of(message))
        except ValueError as error:
            raise PeerError("ring", str(error)) from None

    def check(self, header: RingChunkHeader, count: int) -> Reduction:
        """That which the next `count` numbers are of; PeerError if they cannot be."""
        if header.round != self.number:
            words = f"numbers of round {header.round} came in round {self.number}"
            raise PeerError("ring", words)
        if header.bucket >= len(self.declared):
            words = f"numbers came of bucket {header.bucket}, of {len(self.declared)} declared"
            raise PeerError("ring", words)
        reduction = self.reductions[header.bucket]
        reduction.check(header.hop, header.offset, count, header.contributors, self.others)
        return reduction

    def is_whole(self, buckets: Buckets) -> bool:
        """All sums are here, of `buckets` and no more to come."""
        while self._whole < len(self.reductions) and self.reductions[self._whole].whole:
            self._whole += 1
        return buckets.whole and self._whole == len(buckets)

    @property
    def heard(self) -> int:
        """So many nodes to the left are known to have given all that this node can know of."""
        if self._whole == len(self.reductions):
            return 0
        return self.reductions[self._whole].heard
