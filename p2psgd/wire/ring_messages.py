"""Frames of a ring: the parts and chunks of a round, and the ring's part of a STATUS."""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import Final

from p2psgd.wire import codec
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# The frames of the ring mode, beside RING_BEGIN and RING_BUCKET (messages.py): fixed headers before raw
# bytes, and the ring's part of a STATUS.
#
# A ring frame carries the generation to which it belongs: (view, generation). A node that is in another
# generation drops it before looking further.


_STATE: Final = struct.Struct("<QQBBB")
_UPDATE: Final = struct.Struct("<QQQQII")
_CHUNK: Final = struct.Struct("<QQQIIQI")
_CHECKSUM: Final = struct.Struct("<I")

STATE_BYTES: Final = _STATE.size
RING_UPDATE_BYTES: Final = _UPDATE.size
RING_CHUNK_BYTES: Final = _CHUNK.size + _CHECKSUM.size
RESULT_HOP: Final = 2**32 - 1  # a chunk of the result of a round that the receiver did not complete
BUCKETS_MAX: Final = 4096  # of one round: a bucket is a tensor or some of them
PARTS_MAX: Final = 4096  # updates of one contribution to a round, and of one send
ROUND_MAX: Final = 2**32 - 1  # a thousand rounds a second for 49 days
GENERATION_MAX: Final = 2**62  # nobody gets there by beginning


@dataclass(frozen=True, slots=True)
class RingState:
    """The sender's standing in its view's ring: `generation` is the last one that it took part in (0: none in
    this view), `round` the last round that it completed, `running`: it is in that generation still, `active`:
    it has a trainer that takes part, `contributed`: it has given its contribution to round + 1.
    """

    generation: int
    round: int
    running: bool
    active: bool
    contributed: bool


def pack_ring_state(state: RingState) -> bytes:
    """Pack a ring state as it stands in a STATUS."""
    return _STATE.pack(state.generation, state.round, state.running, state.active, state.contributed)


def parse_ring_state(data: bytes) -> RingState:
    """Parse a ring state; PeerError if it is not one."""
    if len(data) != STATE_BYTES:
        raise PeerError(RejectCode.MESSAGE, f"a ring state of {len(data)} bytes: it has {STATE_BYTES}")
    generation, done, *flags = _STATE.unpack(data)
    if any(flag > 1 for flag in flags):
        raise PeerError(RejectCode.MESSAGE, "a flag of a ring state is neither 0 nor 1")
    if generation > GENERATION_MAX or done > ROUND_MAX:
        raise PeerError(
            RejectCode.MESSAGE,
            f"a ring state tells of generation {generation} and round {done}, which cannot be",
        )
    running, active, contributed = map(bool, flags)
    return RingState(generation, done, running, active, contributed)


@dataclass(frozen=True, slots=True)
class RingUpdateHeader:
    """The header before the body of an UPDATE that is part `part` of `parts` of the contribution of `node` to
    a round; with no parts nothing follows.
    """

    view: int
    generation: int
    round: int
    node: int
    part: int
    parts: int


def pack_ring_update(header: RingUpdateHeader, body: bytes | bytearray) -> bytes:
    """Build the body of a RING_UPDATE frame."""
    return _UPDATE.pack(*astuple(header)) + body


def parse_ring_update(body: bytes | bytearray) -> tuple[RingUpdateHeader, memoryview]:
    """Parse the header, and return it with the body of the UPDATE; PeerError if the header is not valid."""
    if len(body) < _UPDATE.size:
        raise PeerError(RejectCode.RING, f"a part of a round of {len(body)} bytes is shorter than its header")
    header, rest = RingUpdateHeader(*_UPDATE.unpack_from(body)), memoryview(body)[_UPDATE.size :]
    whole = header.part < header.parts and len(rest) > 0
    empty = header.part == header.parts == 0 and len(rest) == 0
    if not (whole or empty):
        words = f"part {header.part} of {header.parts} with {len(rest)} bytes"
        raise PeerError(RejectCode.RING, f"a part of a round that cannot be: {words}")
    return header, rest


@dataclass(frozen=True, slots=True)
class RingChunkHeader:
    """The header before numbers of bucket `bucket`, from its number `offset` on. `hop`: how many links their
    chunk has gone through, this one included, from 0; below N - 1 they are sums of the contributions of
    `contributors` nodes, from there on the sums of all. RESULT_HOP: a result given later.
    """

    view: int
    generation: int
    round: int
    bucket: int
    hop: int
    offset: int
    contributors: int


def pack_ring_chunk(
    header: RingChunkHeader, numbers: bytes | bytearray | memoryview, check: int | None = None
) -> bytes:
    """Build the part of a RING_CHUNK frame before `numbers`. Its checksum is the CRC-32C of the numbers and
    then of the header, so that a caller that knows `check`, that of the numbers, need not read them again.
    """
    start = _CHUNK.pack(
        header.view,
        header.generation,
        header.round,
        header.bucket,
        header.hop,
        header.offset,
        header.contributors,
    )
    return start + _CHECKSUM.pack(codec.crc32c(start, codec.crc32c(numbers) if check is None else check))


def parse_ring_chunk(body: bytes | bytearray | memoryview) -> tuple[RingChunkHeader, memoryview]:
    """Parse the header, and return it with the numbers, whose checksum is not looked at yet; PeerError if the
    body is too short.
    """
    if len(body) <= RING_CHUNK_BYTES:
        raise PeerError(RejectCode.RING, f"a chunk of a round of {len(body)} bytes holds no numbers")
    return RingChunkHeader(*_CHUNK.unpack_from(body)), memoryview(body)[RING_CHUNK_BYTES:]


def check_ring_chunk(body: bytes | bytearray | memoryview, check: int | None = None) -> int:
    """Return the CRC-32C of the numbers, which is `check` if that is known; PeerError if a chunk's checksum
    does not match its bytes.
    """
    view = memoryview(body)
    if check is None:
        check = codec.crc32c(view[RING_CHUNK_BYTES:])
    (checksum,) = _CHECKSUM.unpack_from(view, _CHUNK.size)
    if codec.crc32c(view[: _CHUNK.size], check) != checksum:
        raise PeerError(RejectCode.CHECKSUM, "the checksum of a chunk of a round does not match its bytes")
    return check


# ----------------------------------------------------------------------------
# The contribution of this node's own trainer to a round, once its daemon has checked it: one type from shared
# memory to the ring.


CHANGES: Final = 0  # kinds of bucket, as they travel: changes of the run's weights,
ARRAY: Final = 1  # a script's own array


@dataclass(frozen=True, slots=True)
class ContributionMade:
    """The contribution of this node's trainer to a round of a sparse ring: one update for each magnitude, all
    of `steps`, the last one that it has taken part in; none if nothing exceeded its threshold, or if it only
    follows.
    """

    steps: int
    updates: tuple[OwnUpdateMade, ...]


@dataclass(frozen=True, slots=True)
class BucketContributed:
    """A bucket of a dense ring, whose contribution of this node is whole in `DenseMemory`.

    `kind` CHANGES: of the weights from `offset` on, whose round is whole when its buckets hold each weight
    once. ARRAY: of a script's own, a round by itself, which changes no weight.
    """

    kind: int
    offset: int
    count: int
    name: str
    shape: str
