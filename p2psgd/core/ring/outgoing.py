"""What a dense ring's node sends to its right neighbour: the buckets of its rounds, each declared before its
first numbers.

As long as there is credit, and of the earliest bucket that has something to send. The last sums of a round
may still wait here when it is complete; then all of them can be sent, so they are, before anything of the
next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from p2psgd.core.outbound import Outbound
from p2psgd.core.peer import Peer
from p2psgd.core.ring import chunk_frames
from p2psgd.core.ring.attempt import Attempt
from p2psgd.core.ring.bucket import Bucket
from p2psgd.core.ring.reduction import Reduction
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.ring import RingChunkHeader


@dataclass(slots=True)
class _Lane:
    """A bucket on its way out."""

    round: int
    place: int
    bucket: Bucket
    reduction: Reduction
    declared: bool = False


class Outgoing:
    """Of one attempt."""

    def __init__(self, attempt: Attempt, out: Outbound) -> None:
        self._attempt = attempt
        self._out = out
        self._lanes: deque[_Lane] = deque()  # in the order of rounds and buckets

    def add(self, number: int, place: int, bucket: Bucket, reduction: Reduction) -> None:
        """This node's part in bucket `place` of round `number` is there, or it has none."""
        self._lanes.append(_Lane(number, place, bucket, reduction))

    def push(self, peer: Peer) -> None:
        """Send what can be sent now to the right neighbour."""
        while peer.credit > 0:
            for lane in self._lanes:
                if self._send_next(peer, lane):
                    break
            else:
                return
            if lane.reduction.sent:
                self._lanes.remove(lane)

    def _send_next(self, peer: Peer, lane: _Lane) -> bool:
        """One piece of a bucket; False if there is none."""
        attempt, bucket = self._attempt, lane.bucket
        if not lane.declared:
            lane.declared = True
            message = declaration(attempt.view, attempt.number, lane.round, lane.place, bucket)
            self._out.say(peer, message)
        piece = lane.reduction.next_piece(chunk_frames.segment_numbers(bucket.count, len(attempt.order)))
        if piece is None:
            return False
        place = lane.round, lane.place, piece.hop, piece.offset, piece.contributors
        header = RingChunkHeader(attempt.view, attempt.number, *place)
        chunk_frames.send_chunk(self._out, peer, header, piece.numbers, piece.check)
        return True


def declaration(
    view: int, attempt: int, number: int, place: int, bucket: Bucket, *, hop: int = 0, contributors: int = 0
) -> RingBucket:
    """What stands before the numbers of bucket `place` of round `number`."""
    return RingBucket(
        view=view,
        attempt=attempt,
        round=number,
        bucket=place,
        kind=bucket.kind,
        offset=bucket.offset,
        count=bucket.count,
        name=bucket.name,
        shape=bucket.shape,
        hop=hop,
        contributors=contributors,
    )
