"""What doctors say to each other, after a greeting that a daemon understands as well. Pure.

The one that dials sends HELLO with DOCTOR as its mode. A daemon answers REJECT with the code DOCTOR, whose
words say which run it trains; a doctor answers WELCOME. From there on frames of their own types follow, whose
numbers no daemon knows. Bodies are MessagePack maps with exactly the keys listed here, strictly typed both
ways, but for BULK, whose bytes mean nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Annotated, Final

import msgpack
from pydantic import Field, ValidationError

from p2psgd.errors import PeerError
from p2psgd.net.greeting import DOCTOR
from p2psgd.wire.frames import PREFIX, SMALL_BYTES_MAX, FrameType
from p2psgd.wire.maps import unpack_flat_map
from p2psgd.wire.messages import Message

__all__ = ["DOCTOR", "BULK_BYTES_MAX", "GREETING_SIZES", "MESSAGE_SIZES", "Kind"]

BULK_BYTES_MAX: Final = 64 * 1024
VERSION_MAX: Final = 40


class Kind(enum.IntEnum):
    """Frame types of doctors; the wire protocol's are below 128."""

    FACTS = 128
    ECHO = 129
    ECHOED = 130
    DIALLED = 131
    TURN = 132
    TAKEN = 133
    BULK = 134
    BULK_END = 135
    COUNTED = 136
    DONE = 137


GREETING_SIZES: Final[Mapping[int, int]] = dict.fromkeys(
    (FrameType.HELLO, FrameType.WELCOME, FrameType.REJECT), SMALL_BYTES_MAX
)
MESSAGE_SIZES: Final[Mapping[int, int]] = {
    **dict.fromkeys(Kind, SMALL_BYTES_MAX),
    Kind.BULK: BULK_BYTES_MAX,
}

Version = Annotated[str, Field(strict=True, max_length=VERSION_MAX)]
Nanoseconds = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
Number = Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**40)]
Flag = Annotated[bool, Field(strict=True)]


class Facts(Message):
    """Who the sender is beyond its greeting: versions, the port it listens on (0: a daemon of its machine
    does), its own line in its list of hosts (empty: none), and the SHA-256 of that list.
    """

    version: Version
    python: Version
    numpy: Version
    port: Annotated[int, Field(strict=True, ge=0, le=65535)]
    line: Annotated[str, Field(strict=True, max_length=270)]
    hosts: Annotated[bytes, Field(strict=True, min_length=32, max_length=32)]


class Echo(Message):
    """Asks for the time."""

    number: Number


class Echoed(Message):
    """The answer to ECHO: nanoseconds since 1970 of the sender's clock."""

    number: Number
    clock_ns: Nanoseconds


class Dialled(Message):
    """What became of the sender's dials of the receiver; `final`: it has stopped trying."""

    reached: Flag
    final: Flag
    words: Annotated[str, Field(strict=True, max_length=200)]


class Turn(Message):
    """Asks for the turn to measure what the link carries."""


class Taken(Message):
    """The answer to TURN: the bytes may come, or not now."""

    granted: Flag


class BulkEnd(Message):
    """No more BULK comes."""


class Counted(Message):
    """What has come as BULK: bytes, and the microseconds from the first to the last of them."""

    received: Count
    took_us: Count


class Done(Message):
    """The sender has learned all it wants to know of the receiver."""


MODELS: Final[dict[int, type[Message]]] = {
    Kind.FACTS: Facts,
    Kind.ECHO: Echo,
    Kind.ECHOED: Echoed,
    Kind.DIALLED: Dialled,
    Kind.TURN: Turn,
    Kind.TAKEN: Taken,
    Kind.BULK_END: BulkEnd,
    Kind.COUNTED: Counted,
    Kind.DONE: Done,
}
_KINDS: Final = {model: kind for kind, model in MODELS.items()}


def pack(message: Message) -> bytes:
    """The whole frame of a doctor's message."""
    body: bytes = msgpack.packb(vars(message))
    return PREFIX.pack(len(body), _KINDS[type(message)]) + body


def pack_bulk(size: int) -> bytes:
    """A BULK frame of so many bytes, of which none repeats soon: a link may compress."""
    assert 0 < size <= BULK_BYTES_MAX, size
    pattern = bytes(131 * number * number % 251 for number in range(8191))
    return PREFIX.pack(size, Kind.BULK) + (pattern * math.ceil(size / len(pattern)))[:size]


def parse(kind: int, body: bytes) -> Message:
    """The message of a frame other than BULK; PeerError if it is not exactly that."""
    model = MODELS[kind]
    try:
        return model.model_validate(unpack_flat_map(body, keys_max=max(1, len(model.model_fields))))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PeerError("message", f"{Kind(kind).name} field {where!r:.40}: {first['msg']}") from None
    except ValueError as error:
        raise PeerError("message", f"the body of a {Kind(kind).name} is not a valid map: {error}") from None
