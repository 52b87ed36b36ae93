"""Control messages: MessagePack maps with exactly the keys listed here, strictly typed both ways.

Everything that is not an UPDATE. Flat maps of integers, strings and bytes on purpose: no nesting means no
depth to bound and little for a hostile body to make us allocate. The frontier travels as one packed table
(see `FrontierRow`).
"""

from __future__ import annotations

import itertools
import struct
from typing import Annotated, Final, NamedTuple

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p2psgd.errors import PeerError
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.maps import unpack_map

PROTOCOL_VERSION: Final = 1
ORIGINS_MAX: Final = 1024  # origins a run may see; 32 bytes each keeps a STATUS within its 64 KiB
U64_MAX: Final = 2**64 - 1

U64 = Annotated[int, Field(strict=True, ge=0, le=U64_MAX)]
Sequence = Annotated[int, Field(strict=True, ge=1, le=U64_MAX)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=64)]
Words = Annotated[str, Field(strict=True, max_length=1000)]


class Message(BaseModel):
    """A control message; unknown or missing keys and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Hello(Message):
    """First frame of the side that dialled: who it is and which run it trains.

    `run` is the run's fingerprint; the four fields after it are what the fingerprint covers, as far as they
    help to say what differs when it does. `label` is the recipe's mark, free to choose.
    """

    protocol: Annotated[int, Field(strict=True, ge=1, le=65535)]
    node: U64
    incarnation: U64
    name: Name
    run: Annotated[bytes, Field(strict=True, min_length=32, max_length=32)]
    weights: Annotated[int, Field(strict=True, ge=1, le=2**31)]
    quantum_log2: Annotated[int, Field(strict=True, ge=-30, le=0)]
    mode: Name
    label: Annotated[str, Field(strict=True, max_length=200)]


class Welcome(Hello):
    """Answer to HELLO from a side that accepts; from here on both are linked."""


class Reject(Message):
    """Answer to HELLO from a `node` that does not accept it, with the reason; then the connection ends."""

    node: U64
    code: Name
    words: Words


class Status(Message):
    """What the sender has applied: the acknowledgement, the sign of life and the comparison of replicas in
    one.

    `frontier` is a packed table of `FrontierRow`s; `loop_lag_ms` tells how late the sender's loop runs.
    """

    frontier: Annotated[bytes, Field(strict=True, max_length=32 * ORIGINS_MAX)]
    loop_lag_ms: Annotated[int, Field(strict=True, ge=0, le=2**31)]


class Need(Message):
    """Asks for updates `first`..`last` of one origin from anybody who holds them."""

    node: U64
    incarnation: U64
    first: Sequence
    last: Sequence


class Gap(Message):
    """Answer to NEED: updates up to `floor` of that origin are no longer held."""

    node: U64
    incarnation: U64
    floor: Sequence


class Goodbye(Message):
    """Last frame of a clean stop; `sequence` is the sender's last own update, 0 if it sent none."""

    sequence: U64


MESSAGES: Final[dict[FrameType, type[Message]]] = {
    FrameType.HELLO: Hello,
    FrameType.WELCOME: Welcome,
    FrameType.REJECT: Reject,
    FrameType.STATUS: Status,
    FrameType.NEED: Need,
    FrameType.GAP: Gap,
    FrameType.GOODBYE: Goodbye,
}
_TYPES: Final = {message: frame_type for frame_type, message in MESSAGES.items()}


def pack_message(message: Message) -> bytes:
    """The whole frame of a control message."""
    body: bytes = msgpack.packb(message.model_dump())
    return pack_frame(_TYPES[type(message)], body)


def parse_message(frame_type: FrameType, body: bytes | bytearray) -> Message:
    """The message in a control frame's body; PeerError if it is not exactly that."""
    model = MESSAGES[frame_type]
    try:
        fields = unpack_map(body, array_max=0)  # no control message of version 1 holds an array
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PeerError("message", f"{frame_type.name} field {where!r:.40}: {first['msg']}") from None
    except ValueError as error:
        raise PeerError("message", f"the body of a {frame_type.name} is not a valid map: {error}") from None


class FrontierRow(NamedTuple):
    """One origin's line in a frontier: `sequence` is the last contiguous update applied, `digest` the
    running digest there.
    """

    node: int
    incarnation: int
    sequence: int
    digest: int


_ROW: Final = struct.Struct("<QQQQ")


def pack_frontier(rows: list[FrontierRow]) -> bytes:
    """The rows, sorted by node and incarnation, 32 bytes each."""
    return b"".join(_ROW.pack(*row) for row in sorted(rows))


def parse_frontier(table: bytes) -> list[FrontierRow]:
    """The rows of a packed frontier; PeerError unless whole, strictly ascending and each with a sequence of
    at least 1.
    """
    if len(table) % _ROW.size:
        raise PeerError("message", f"a frontier of {len(table)} bytes is not a multiple of {_ROW.size}")
    rows = [FrontierRow(*row) for row in _ROW.iter_unpack(table)]
    for before, after in itertools.pairwise(rows):
        if before[:2] >= after[:2]:
            raise PeerError("message", "a frontier's rows are not in ascending order")
    if any(row.sequence == 0 for row in rows):
        raise PeerError("message", "a frontier names an origin of which nothing was applied")
    return rows
