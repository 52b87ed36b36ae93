"""Chunks of a dense ring: what the right neighbour is sent, how, and the weights made from sums."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alert
from p2psgd.core.peer import Peer
from p2psgd.core.ring.reduce import Bucket, Reduction
from p2psgd.core.ring.rounds import Generation
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import Outbound
from p2psgd.core.state import U64_MODULUS, State
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import RING_CHUNK_BYTES, RingChunkHeader, pack_ring_chunk

# ----------------------------------------------------------------------------
# The weights after a round, made beside those of now while its sums come in.
#
# New weight = weight + sum of the changes * float32(1 / contributors): the mean of the shares, in float32
# and in this order, so that every node has the same bits. Made piece by piece with the digest, so that
# completing a round is a change of places, as a whole and at once.
#
# The digest of the weights that it starts from is worked out again on the way: memory that has changed there
# would else give wrong weights with a right digest, which nobody but the others could see.


CHANGED: Final = "the weights in memory have changed since the last round, by bad memory or a bug"


class NextWeights:
    """The weights that the next round makes: made anew for one round after the other."""

    def __init__(self, state: State) -> None:
        self.digest = 0  # of the weights made so far
        self._state = state
        self._made = 0
        self._before = 0  # the digest of those that they were made from
        self._target: NDArray[np.int32] | None = None
        self._idle: list[NDArray[np.int32]] = []  # memory of former weights

    def begin(self) -> None:
        """Begin anew, and discard what was made."""
        self.digest = self._before = self._made = 0

    def take(self, start: int, sums: NDArray[np.float32], contributors: int) -> None:
        """Make new weights of `sums` float32 (n,), which are those of the weights from `start` on; each comes
        once.
        """
        if self._target is None:
            self._target = self._find_memory()
        part = slice(start, start + len(sums))
        old, new = self._state.lattice.coordinates[part], self._target[part]
        factor = float(np.float32(1 / contributors))
        before, after = codec.move_weights(old, sums, factor, new, key=self._state.spec.key, start=start)
        self._before = (self._before + before) % U64_MODULUS
        self.digest = (self.digest + after) % U64_MODULUS
        self._made += len(sums)

    def is_sound(self, scanner: SliceScanner, out: Outbound, now: float) -> bool:
        """Return whether the weights that the new ones were made from, all of them, have their digest. If
        not, emit an alert; the next tick's scrub finds it too.
        """
        assert self._made == len(self._state.lattice.coordinates), self._made
        if self._before == self._state.lattice.digest:
            return True
        out.emit(Alert(f"{CHANGED}: the round is not completed, and the weights are looked at anew"))
        scanner.scrub_at_once(now)
        return False

    def complete(self, *, view: int, number: int) -> None:
        """Put the new weights, all of them, into the replica."""
        assert self._target is not None
        before = self._state.complete_round(self._target, self.digest, view=view, number=number)
        self._idle = [each for each in self._idle if self._state.is_reading(each)]
        self._idle.append(before)
        self._target = None
        self.begin()

    def _find_memory(self) -> NDArray[np.int32]:
        """Return former weights that no copy or scrub goes over any more, or else new memory."""
        for place, each in enumerate(self._idle):
            if not self._state.is_reading(each):
                return self._idle.pop(place)
        return np.empty_like(self._state.lattice.coordinates)


# ----------------------------------------------------------------------------
# RING_CHUNK frames of a dense ring, both ways: numbers are sent from where they lie.


SEGMENT_NUMBERS_MIN: Final = 1 << 14  # 64 KiB: below, it costs more to handle a frame than to wait for it
SEGMENT_NUMBERS: Final = 1 << 19  # in one frame at most: 2 MiB of float32, 17 ms of a 1 Gbit/s link
SEGMENTS_IN_CHUNK: Final = 4  # so that a node sends the first while it receives the others


def segment_numbers(count: int, nodes: int) -> int:
    """Return how many numbers of a bucket of `count` go into one frame: as many as overlapping allows, since
    each frame takes Python's time.
    """
    wanted = -(-count // (nodes * SEGMENTS_IN_CHUNK))
    return min(max(wanted, SEGMENT_NUMBERS_MIN), SEGMENT_NUMBERS)


def send_chunk(
    out: Outbound,
    peer: Peer,
    header: RingChunkHeader,
    numbers: NDArray[np.float32] | NDArray[np.float16],
    check: int | None = None,
) -> None:
    """Send one frame, `check` the CRC-32C of its numbers if it is known; the memory of `numbers` stays as it
    is until the peer has read it, or drops it unread.
    """
    flat = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).data.cast("B")
    start = PREFIX.pack(RING_CHUNK_BYTES + flat.nbytes, FrameType.RING_CHUNK)
    out.send_floats(peer, start + pack_ring_chunk(header, flat, check), flat)


def count_numbers(numbers: memoryview, *, half: bool) -> int:
    """Return how many numbers came; PeerError if the bytes do not hold whole numbers."""
    count, rest = divmod(len(numbers), 2 if half else 4)
    if rest:
        raise PeerError(RejectCode.RING, f"a chunk of {len(numbers)} bytes does not hold whole numbers")
    return count


# ----------------------------------------------------------------------------
# What a dense ring's node sends to its right neighbour: the buckets of its rounds, each declared before its
# first numbers.
#
# As long as there is credit, and of the earliest bucket that has something to send. The last sums of a round
# may still wait here when it is complete; then all of them can be sent, so they are, before anything of the
# next.


@dataclass(slots=True)
class _Lane:
    """A bucket on its way to the right neighbour."""

    round: int
    place: int
    bucket: Bucket
    reduction: Reduction
    declared: bool = False


class Outgoing:
    """The numbers that a generation has to send to the right neighbour."""

    def __init__(self, generation: Generation, out: Outbound) -> None:
        self._generation = generation
        self._out = out
        self._lanes: deque[_Lane] = deque()  # in the order of rounds and buckets

    def add(self, number: int, place: int, bucket: Bucket, reduction: Reduction) -> None:
        """Add bucket `place` of round `number`: this node's part in it is there, or it has none."""
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
        """Send one piece of a bucket; False if there is none."""
        generation, bucket = self._generation, lane.bucket
        if not lane.declared:
            lane.declared = True
            message = declaration(generation.view, generation.number, lane.round, lane.place, bucket)
            self._out.send_message(peer, message)
        piece = lane.reduction.next_piece(segment_numbers(bucket.count, len(generation.order)))
        if piece is None:
            return False
        place = lane.round, lane.place, piece.hop, piece.offset, piece.contributors
        header = RingChunkHeader(generation.view, generation.number, *place)
        send_chunk(self._out, peer, header, piece.numbers, piece.check)
        return True


def declaration(
    view: int,
    generation: int,
    number: int,
    place: int,
    bucket: Bucket,
    *,
    hop: int = 0,
    contributors: int = 0,
) -> RingBucket:
    """Return the message that precedes the numbers of bucket `place` of round `number`."""
    return RingBucket(
        view=view,
        generation=generation,
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
