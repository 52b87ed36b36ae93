"""A recording: every update of a run that one node applied, in the order in which it applied them, as a file.

A start that says which run it is, then UPDATE frames exactly as on the wire; SPEC.md (Recordings) has the
bytes. Applied to the run's initial coordinates, the updates give the replica that the node had. Not in it:
the initial coordinates themselves (only their hash), and when an update came.

Any bytes are safe to read: every length is checked against its limit before anything of that size is made.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p2psgd.base.errors import PeerError, RecordingError
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, FrameReader, FrameType, link_limits
from p2psgd.wire.messages import ORIGINS_MAX, unpack_map
from p2psgd.wire.update import UpdateHeader, parse_update

MAGIC: Final = b"p2psgd-r"
VERSION: Final = 2
HEADER_BYTES_MAX: Final = 128 * 1024  # a proposed run comes in one request, which has half of that
TENSORS_MAX: Final = 4096
_START: Final = struct.Struct("<8sII")  # magic, version, bytes of the header

Hash = Annotated[bytes, Field(min_length=32, max_length=32)]
Size = Annotated[int, Field(ge=1, le=codec.WEIGHTS_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Shape = Annotated[tuple[Size, ...], Field(max_length=16)]


class RecordingHeader(BaseModel):
    """Which run the updates are of: what its fingerprint covers, the fingerprint, and the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tensors: Annotated[tuple[tuple[Name, Shape], ...], Field(min_length=1, max_length=TENSORS_MAX)]
    quantum_log2: Annotated[int, Field(ge=-30, le=0)]
    mode: Annotated[str, Field(min_length=1, max_length=64)]
    label: Annotated[str, Field(max_length=200)]
    initial: Hash
    two_nodes: Annotated[str, Field(pattern="^(stall|lower-id)$")]
    fingerprint: Hash
    weights: Size


class RecordedUpdate(NamedTuple):
    """One update; `words` is what `payload` decodes to."""

    header: UpdateHeader
    payload: memoryview
    words: NDArray[np.uint32]


def pack_start(header: RecordingHeader) -> bytes:
    """The bytes of a recording before its first frame."""
    fields: bytes = msgpack.packb(header.model_dump())
    return _START.pack(MAGIC, VERSION, len(fields)) + fields


def read_start(file: io.BufferedIOBase) -> RecordingHeader:
    """Read up to the first frame; RecordingError if that is not the start of a recording."""
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(MAGIC):
        raise RecordingError("this is not a recording: it does not begin like one")
    _, version, length = _START.unpack(start)
    if version != VERSION:
        raise RecordingError(f"the recording has format {version}, this p2psgd reads format {VERSION}")
    if length > HEADER_BYTES_MAX:
        raise RecordingError(f"the recording's header takes {length} bytes, allowed are {HEADER_BYTES_MAX}")
    body = file.read(length)
    if len(body) < length:
        raise RecordingError("the recording ends in the middle of its header")
    return _parse_header(body)


def read_updates(file: io.BufferedIOBase, weights: int) -> Iterator[RecordedUpdate]:
    """The updates from the first frame on, for `weights` weights.

    Each whole one is given before RecordingError says where and why the recording cannot be read on.
    """
    sequences: dict[tuple[int, int], int] = {}
    for number, body in enumerate(read_bodies(file, weights), 1):
        try:
            update = _parse_update(body, weights)
            _check_order(update.header, sequences)
        except PeerError as error:
            raise _unreadable(number, error) from None
        yield update


def read_bodies(file: io.BufferedIOBase, weights: int) -> Iterator[bytes | bytearray]:
    """The bodies of the UPDATE frames, of which only the lengths are checked, in the same way."""
    reader = FrameReader()
    reader.open({FrameType.UPDATE: link_limits(weights)[FrameType.UPDATE]})
    number, waiting = 1, 0
    while True:
        try:
            frame = reader.next_frame()
        except PeerError as error:
            raise _unreadable(number, error) from None
        if frame is not None:
            _, body = frame
            assert not isinstance(body, memoryview)  # only of a RING_CHUNK, which has no place here
            yield body
            number += 1
            waiting -= PREFIX.size + len(body)
        elif count := file.readinto(reader.get_buffer()):
            reader.received(count)
            waiting += count
        elif waiting:
            raise RecordingError(f"the recording ends in the middle of update {number}")
        else:
            return


def _unreadable(number: int, error: PeerError) -> RecordingError:
    return RecordingError(f"update {number} of the recording cannot be read: {error}")


def _parse_update(body: bytes | bytearray, weights: int) -> RecordedUpdate:
    header, payload = parse_update(body, weights)
    return RecordedUpdate(header, payload, codec.decode(payload, header.count, weights))


def _check_order(header: UpdateHeader, sequences: dict[tuple[int, int], int]) -> None:
    """Each update once, and of an origin in order; `sequences` are the last ones."""
    origin = (header.node, header.incarnation)
    expected = sequences.get(origin, 0) + 1
    if header.sequence != expected:
        raise PeerError("sequence", f"its sequence number is {header.sequence} where {expected} follows")
    if expected == 1 and len(sequences) == ORIGINS_MAX:
        raise PeerError("origins", f"a run has at most {ORIGINS_MAX} origins, this would be one more")
    sequences[origin] = expected


def _parse_header(body: bytes) -> RecordingHeader:
    try:
        header = RecordingHeader.model_validate(unpack_map(body, array_max=TENSORS_MAX))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise RecordingError(f"the recording's header, {where!r:.80}: {fault['msg']:.200}") from None
    except ValueError as error:
        raise RecordingError(f"the recording's header is not a valid map: {error}") from None
    if sum(math.prod(shape) for _, shape in header.tensors) != header.weights:
        raise RecordingError(f"the recording's tensors do not add up to its {header.weights} weights")
    return header
