"""Messages of doctors, and the outcome of dialling an address."""

from __future__ import annotations

import enum
import errno
from typing import Annotated, Final

import msgpack
from pydantic import Field, ValidationError

from p2psgd.errors import PeerError
from p2psgd.net.address import UnknownNameError
from p2psgd.wire.frames import DOCTOR_BYTES_MAX, SMALL_BYTES_MAX, Body, FrameType, pack_frame
from p2psgd.wire.messages import Message, unpack_flat_map

# ----------------------------------------------------------------------------
# What doctors say to each other, after a greeting that a node understands as well. Pure.
#
# The one that dials sends HELLO with DOCTOR as its mode. A node answers REJECT with the code DOCTOR, whose
# words say which run it trains; a doctor answers WELCOME. From there on DOCTOR frames follow: one byte for
# what it is, and a MessagePack map with exactly the keys listed here, strictly typed both ways, but for
# BULK, whose bytes mean nothing.


BULK_BYTES: Final = DOCTOR_BYTES_MAX - 1  # of each BULK


class Kind(enum.IntEnum):
    """The first byte of a DOCTOR frame."""

    FACTS = 1
    ECHO = 2
    ECHOED = 3
    DIALLED = 4
    TURN = 5
    TAKEN = 6
    BULK = 7
    BULK_END = 8
    COUNTED = 9
    YOURS = 10
    OVER = 11
    DONE = 12


Version = Annotated[str, Field(strict=True, max_length=40)]
Nanoseconds = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
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


class Echoed(Message):
    """The answer to ECHO: nanoseconds since 1970 of the sender's clock."""

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
    """So many BULK for now: how much has come?"""


class Counted(Message):
    """The answer to BULK_END: bytes after the first BULK, and the microseconds from that to the last."""

    received: Count
    took_us: Count


class Yours(Message):
    """The one that asked for the turn has sent enough: now the other one."""


class Over(Message):
    """The other one has, too: the turn is over."""


class Done(Message):
    """The sender has learned all it wants to know of the receiver."""


_MODELS: Final[dict[int, type[Message]]] = {
    Kind.FACTS: Facts,
    Kind.ECHO: Echo,
    Kind.ECHOED: Echoed,
    Kind.DIALLED: Dialled,
    Kind.TURN: Turn,
    Kind.TAKEN: Taken,
    Kind.BULK_END: BulkEnd,
    Kind.COUNTED: Counted,
    Kind.YOURS: Yours,
    Kind.OVER: Over,
    Kind.DONE: Done,
}
_KINDS: Final = {model: kind for kind, model in _MODELS.items()}
_PATTERN: Final = bytes(131 * number * number % 251 for number in range(BULK_BYTES))
BULK: Final = pack_frame(FrameType.DOCTOR, bytes([Kind.BULK]) + _PATTERN)


def pack(message: Message) -> bytes:
    """The whole frame of a message."""
    body: bytes = msgpack.packb(vars(message))
    return pack_frame(FrameType.DOCTOR, bytes([_KINDS[type(message)]]) + body)


def parse(body: Body) -> Message | None:
    """The message in a DOCTOR frame's body, None of a BULK; PeerError if it is not exactly that."""
    kind = body[0]
    if kind == Kind.BULK:
        return None
    model = _MODELS.get(kind)
    if model is None or len(body) > SMALL_BYTES_MAX:
        raise PeerError("message", f"a message of kind {kind} and {len(body)} bytes is not known")
    try:
        return model.model_validate(
            unpack_flat_map(bytes(body[1:]), keys_max=max(1, len(model.model_fields)))
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PeerError("message", f"{Kind(kind).name} field {where!r:.40}: {first['msg']}") from None
    except ValueError as error:
        raise PeerError("message", f"the body of a {Kind(kind).name} is not a valid map: {error}") from None


# ----------------------------------------------------------------------------
# What became of dialling an address, in a form that checks can judge. Pure but for the names of errors.


class Outcome(enum.StrEnum):
    """Of the last dial of an address."""

    UNTRIED = "untried"
    DOCTOR = "doctor"  # a doctor answers
    NODE = "node"  # a daemon does
    ITSELF = "itself"  # it is this doctor
    REFUSED = "refused"  # nothing listens there
    SILENT = "silent"  # no answer at all
    AWAY = "away"  # the network finds no such machine
    UNREACHABLE = "unreachable"  # this machine knows no way there
    UNRESOLVED = "unresolved"  # a name that is none
    TLS = "tls"  # one side does not accept the other's certificate, or speaks no TLS
    STRANGE = "strange"  # something answers that is neither doctor nor daemon of this version
    MUTE = "mute"  # something takes connections and says nothing: a node without a trainer yet does so
    LEFT = "left"  # a doctor was there, and ended too early


REACHED: Final = frozenset({Outcome.DOCTOR, Outcome.NODE, Outcome.ITSELF})
# Tell more than that nothing answers later, since the doctor there has ended.
TELLING: Final = frozenset({Outcome.TLS, Outcome.STRANGE, Outcome.MUTE, Outcome.LEFT})
UNANSWERED: Final = frozenset({Outcome.REFUSED, Outcome.SILENT, Outcome.AWAY})
_OF_TLS: Final = ("TLS", "handshake", "certificate", "CA")  # in the reasons of p2psgd.net
_NO_WAY: Final = frozenset(
    {errno.ENETUNREACH, errno.ENETDOWN, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}
)


def judge_failure(error: BaseException, timeout_s: float) -> tuple[Outcome, str]:
    """Outcome and a few words for what a dial raised."""
    words = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    match error:
        case TimeoutError() if error.errno is None:
            found = Outcome.SILENT, f"no answer within {timeout_s:g} s"
        case TimeoutError():
            found = Outcome.SILENT, "no answer"
        case ConnectionRefusedError():
            found = Outcome.REFUSED, "connection refused"
        case UnknownNameError():
            found = Outcome.UNRESOLVED, str(error)
        case PeerError(reason="no greeting"):
            found = Outcome.MUTE, "something listens there, but says nothing"
        case PeerError() if any(word in error.reason for word in _OF_TLS):
            found = Outcome.TLS, str(error)
        case PeerError():
            found = Outcome.STRANGE, str(error)
        case OSError(errno=errno.EHOSTUNREACH):
            found = Outcome.AWAY, "no such machine answers (no route to host)"
        case OSError() if error.errno in _NO_WAY:
            found = Outcome.UNREACHABLE, words
        case _:
            found = Outcome.STRANGE, f"the connection failed: {words}"
    return found
