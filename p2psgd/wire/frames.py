"""Frames: how bytes on a connection become (type, body) pairs, without doing any reading.

A frame is a u32 length of its body, a u8 type, and the body. `FrameReader` owns the receive buffer that the
transport fills (asyncio's BufferedProtocol: one copy less than a stream) and hands out whole frames. Type and
length are checked against the limits in force before a single byte of the body gets a place in memory. The
reader does not interpret a body, but it knows how long it is needed: of a RING_CHUNK, whose numbers are added
to others at once, it hands out its buffer's own memory.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Final

from p2psgd.wire import codec
from p2psgd.wire.reject import PeerError, RejectCode


class FrameType(enum.IntEnum):
    """The type of a frame, a number on the wire; APPEND ONLY."""

    HELLO = 1
    WELCOME = 2
    REJECT = 3
    UPDATE = 4
    STATUS = 5
    FETCH = 6
    TRIMMED = 7
    GOODBYE = 8
    PREPARE = 9
    PROMISE = 10
    ACCEPT = 11
    ACCEPTED = 12
    VIEW = 13
    SNAPSHOT_REQUEST = 14
    SNAPSHOT_META = 15
    SNAPSHOT_CHUNK = 16
    SNAPSHOT_TAIL = 17
    SNAPSHOT_END = 18
    RING_BEGIN = 19
    RING_UPDATE = 20
    RING_BUCKET = 21
    RING_CHUNK = 22
    CONTRIBUTION = 23
    PEERS = 24
    SNAPSHOT_COVER = 25
    RULE_STATE = 26
    EVALUATION_REPORT = 27
    EVALUATION_LEASE = 28
    EVALUATION_TABLE = 29
    EVALUATION_RESULT = 30
    EVALUATION_FETCH = 31
    EVALUATION_NUMBERS = 32


_TYPES: Final = {int(frame_type): frame_type for frame_type in FrameType}
Body = bytes | bytearray | memoryview  # of a frame; a memoryview is good until more is received
PREFIX: Final = struct.Struct("<IB")
UPDATE_HEADER_BYTES: Final = 64
ORIGINS_MAX: Final = 1024  # origins a run may see
COVER_BYTES_MAX: Final = 32 * 1024  # of an owner's update, or in a snapshot: 1,024 contributors
CONTRIBUTION_HEADER_BYTES: Final = 32
RULE_STATE_HEADER_BYTES: Final = 24
RULE_STATE_ARRAYS_MAX: Final = 2
RULE_STATE_WEIGHTS_MAX: Final = 16 * 1024  # in one frame
EVALUATION_HEADER_BYTES: Final = 40
EVALUATION_NUMBERS_MAX: Final = 128 * 1024  # int64 in one frame
EVALUATION_BYTES_MAX: Final = 8 * 1024  # sets of portions, limits and words
EVALUATION_TABLE_BYTES_MAX: Final = 28 * 1024  # 1,024 members, 4,096 portions
SMALL_BYTES_MAX: Final = 4 * 1024  # what has no table; before a peer is known it gets no more of our memory
VIEW_BYTES_MAX: Final = 40 * 1024  # a view of 1,024 members and as many forbidden nodes
TABLE_BYTES_MAX: Final = 128 * 1024  # a STATUS of 1,024 origins and members
CHUNK_BYTES_MAX: Final = 1024 * 1024  # of a snapshot
NUMBERS_BYTES_MAX: Final = 2 * 1024 * 1024  # in one RING_CHUNK
PEERS_BYTES_MAX: Final = 28 * 1024  # addresses of 1,024 members
RING_HEADER_BYTES_MAX: Final = 64  # before what a RING_UPDATE or RING_CHUNK carries
BUFFER_BYTES: Final = (
    256 * 1024
)  # a few hundred usual updates' worth of one read; larger bodies get a buffer of their own
GROWTH: Final = 4  # of a link's buffer, up to that, when a read fills it or a frame needs more
AHEAD_BYTES: Final = 64 * 1024  # read beyond a large RING_CHUNK, so that little of the next has to move

_GREETINGS: Final = (FrameType.HELLO, FrameType.WELCOME)
HANDSHAKE_LIMITS: Final[Mapping[FrameType, int]] = dict.fromkeys(
    (*_GREETINGS, FrameType.REJECT), SMALL_BYTES_MAX
)


def link_limits(weights: int) -> dict[FrameType, int]:
    """Return the largest body in bytes of each type that a linked peer may send in a run of `weights`
    weights.
    """
    payload = codec.payload_bytes_max(codec.indices_max(weights))
    update = UPDATE_HEADER_BYTES + COVER_BYTES_MAX + payload
    larger = {
        FrameType.UPDATE: update,
        FrameType.STATUS: TABLE_BYTES_MAX,
        FrameType.PROMISE: VIEW_BYTES_MAX,
        FrameType.ACCEPT: VIEW_BYTES_MAX,
        FrameType.VIEW: VIEW_BYTES_MAX,
        FrameType.SNAPSHOT_META: TABLE_BYTES_MAX,
        FrameType.SNAPSHOT_COVER: COVER_BYTES_MAX,
        FrameType.SNAPSHOT_CHUNK: CHUNK_BYTES_MAX,
        FrameType.SNAPSHOT_TAIL: update,
        FrameType.RING_UPDATE: RING_HEADER_BYTES_MAX + UPDATE_HEADER_BYTES + payload,
        FrameType.RING_CHUNK: RING_HEADER_BYTES_MAX + NUMBERS_BYTES_MAX,
        FrameType.CONTRIBUTION: CONTRIBUTION_HEADER_BYTES + payload,
        FrameType.PEERS: PEERS_BYTES_MAX,
        FrameType.EVALUATION_REPORT: EVALUATION_BYTES_MAX,
        FrameType.EVALUATION_LEASE: EVALUATION_BYTES_MAX,
        FrameType.EVALUATION_TABLE: EVALUATION_TABLE_BYTES_MAX,
        FrameType.EVALUATION_NUMBERS: EVALUATION_HEADER_BYTES + 8 * EVALUATION_NUMBERS_MAX,
        FrameType.RULE_STATE: (RULE_STATE_HEADER_BYTES + 4 * RULE_STATE_ARRAYS_MAX * RULE_STATE_WEIGHTS_MAX),
    }
    return {each: larger.get(each, SMALL_BYTES_MAX) for each in FrameType if each not in _GREETINGS}


def pack_frame(frame_type: FrameType, body: bytes) -> bytes:
    """Build the bytes of one frame."""
    return PREFIX.pack(len(body), frame_type) + body


class FrameReader:
    """A reader that cuts a byte stream into frames.

    The transport asks `get_buffer` where to write, calls `received(n)`, then `next_frame` is called until it
    returns None. Invariant: 0 <= start <= end <= len(buffer); bytes [start, end) are received and not yet
    handed out. While a body that is larger than the buffer is under way, `body` holds it and [start, end) is
    empty.

    The body of a RING_CHUNK is a view of the buffer, which the next `get_buffer` may write over. Where they
    are large, each is read to its end and little further: it is not moved, and the buffer that all of them go
    through stays in the cache.
    """

    def __init__(self) -> None:
        self._limits: Mapping[FrameType, int] = HANDSHAKE_LIMITS
        self._buffer = bytearray(PREFIX.size + SMALL_BYTES_MAX)
        self._bytes_max = len(self._buffer)
        self._start = 0
        self._end = 0
        self._body: bytearray | None = None
        self._body_type = FrameType.HELLO
        self._filled = 0
        self._chunks = False  # they are large
        self._chunk_rest = 0  # bytes to come of one that has begun to

    def open(self, limits: Mapping[FrameType, int]) -> None:
        """Switch from the greeting's limits to those of a linked peer."""
        self._limits = limits
        self._bytes_max = BUFFER_BYTES

    def get_buffer(self) -> memoryview:
        """Return the memory where the transport may write next; never empty."""
        if self._body is not None:
            return memoryview(self._body)[self._filled :]
        if self._end == len(self._buffer) < self._bytes_max:  # there may well be more
            self._grow(self._end + 1)
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start and len(self._buffer) - self._end < (self._chunk_rest or len(self._buffer) // 2):
            waiting = self._buffer[self._start : self._end]
            self._buffer[: len(waiting)] = waiting
            self._start, self._end = 0, len(waiting)
        if not self._chunks:
            return memoryview(self._buffer)[self._end :]
        return memoryview(self._buffer)[self._end : self._end + (self._chunk_rest or AHEAD_BYTES)]

    def received(self, count: int) -> None:
        """Note that `count` bytes were written to the start of the last buffer handed out."""
        if self._body is not None:
            self._filled += count
        else:
            self._end += count

    def next_frame(self) -> tuple[FrameType, Body] | None:
        """Return the next whole frame, or None; PeerError on a type or length that is not allowed now."""
        if self._body is not None:
            if self._filled < len(self._body):
                return None
            whole, self._body = self._body, None
            if self._body_type is FrameType.RING_CHUNK:  # the next ones have room in it
                self._buffer = bytearray(PREFIX.size + len(whole) + AHEAD_BYTES)
                self._chunks = True
            return self._body_type, whole
        if self._end - self._start < PREFIX.size:
            return None
        length, number = PREFIX.unpack_from(self._buffer, self._start)
        frame_type = _TYPES.get(number)
        if frame_type is None or not 0 < length <= self._limits.get(frame_type, 0):
            raise self._refusal(number, length)
        body_start = self._start + PREFIX.size
        self._chunk_rest = 0
        if self._end - body_start >= length:
            self._start = body_start + length
            body = memoryview(self._buffer)[body_start : self._start]
            return frame_type, body if frame_type is FrameType.RING_CHUNK else bytes(body)
        if self._chunks and frame_type is FrameType.RING_CHUNK:
            self._chunk_rest = length - (self._end - body_start)
        if len(self._buffer) < PREFIX.size + length <= self._bytes_max:
            self._grow(PREFIX.size + length)
        elif PREFIX.size + length > len(self._buffer):
            self._chunk_rest = 0
            self._body = bytearray(length)
            self._body_type = frame_type
            self._filled = self._end - body_start
            self._body[: self._filled] = memoryview(self._buffer)[body_start : self._end]
            self._start = self._end = 0
        return None

    def _grow(self, bytes_min: int) -> None:
        """Go on with a larger buffer: many links are idle, and a new buffer's memory is written to."""
        size = len(self._buffer)
        while size < bytes_min:
            size *= GROWTH
        waiting = self._buffer[self._start : self._end]
        self._buffer = bytearray(min(size, self._bytes_max))
        self._buffer[: len(waiting)] = waiting
        self._start, self._end = 0, len(waiting)

    def _refusal(self, number: int, length: int) -> PeerError:
        """Build the error for a frame's prefix that is not allowed."""
        frame_type = _TYPES.get(number)
        if frame_type is None:
            return PeerError(RejectCode.FRAME_TYPE, f"frame type {number} is not known")
        limit = self._limits.get(frame_type)
        if limit is None:
            return PeerError(
                RejectCode.FRAME_ORDER, f"a {frame_type.name} frame is not allowed at this point"
            )
        words = f"a {frame_type.name} frame of {length} bytes, allowed are 1 to {limit}"
        return PeerError(RejectCode.FRAME_LENGTH, words)
