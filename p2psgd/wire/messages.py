"""Control messages: MessagePack maps with exactly the keys listed here, strictly typed both ways.

Everything that is not an UPDATE or a part of a snapshot. Flat maps of integers, strings and bytes on purpose:
no nesting means no depth to bound and little for a hostile body to make us allocate. What has rows travels as
a packed table (tables.py), and whoever reads a message finds its tables' names here too.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from p2psgd.errors import PeerError
from p2psgd.wire.addresses import IP_BYTES, PEER_BYTES
from p2psgd.wire.frames import Body, FrameType, pack_frame
from p2psgd.wire.maps import unpack_flat_map
from p2psgd.wire.ring import BUCKETS_MAX, RESULT_HOP, STATE_BYTES_MAX
from p2psgd.wire.tables import (
    CONFIRMED_BYTES,
    MEMBER_BYTES,
    MEMBERS_MAX,
    NODE_BYTES,
    ORIGINS_MAX,
    ROW_BYTES,
    U64_MAX,
    ConfirmedRow,
    FrontierRow,
    MemberRow,
    pack_confirmed,
    pack_frontier,
    pack_members,
    pack_nodes,
    pack_order,
    parse_confirmed,
    parse_frontier,
    parse_members,
    parse_nodes,
    parse_order,
)

__all__ = [
    "MEMBERS_MAX",
    "MESSAGES",
    "ORIGINS_MAX",
    "PROTOCOL_VERSION",
    "U64_MAX",
    "WORDS_MAX",
    "Accept",
    "Accepted",
    "ConfirmedRow",
    "FrontierRow",
    "Gap",
    "Goodbye",
    "Hello",
    "MemberRow",
    "Message",
    "Need",
    "Peers",
    "Prepare",
    "Promise",
    "Reject",
    "RingBegin",
    "RingBucket",
    "SnapshotEnd",
    "SnapshotMeta",
    "SnapshotRequest",
    "Status",
    "ViewNews",
    "Welcome",
    "pack_confirmed",
    "pack_frontier",
    "pack_members",
    "pack_message",
    "pack_nodes",
    "pack_order",
    "parse_confirmed",
    "parse_frontier",
    "parse_members",
    "parse_message",
    "parse_nodes",
    "parse_order",
]

PROTOCOL_VERSION: Final = 1
WORDS_MAX: Final = 900  # code points: with a code, and 4 bytes each, a REJECT still fits its frame

U64 = Annotated[int, Field(strict=True, ge=0, le=U64_MAX)]
# 0 is reserved: origin (0, 0) is a dense ring's
NodeId = Annotated[int, Field(strict=True, ge=1, le=U64_MAX)]
Sequence = Annotated[int, Field(strict=True, ge=1, le=U64_MAX)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=64)]
Words = Annotated[str, Field(strict=True, max_length=WORDS_MAX)]
Frontier = Annotated[bytes, Field(strict=True, max_length=ROW_BYTES * ORIGINS_MAX)]
Confirmed = Annotated[bytes, Field(strict=True, max_length=CONFIRMED_BYTES * MEMBERS_MAX)]
Members = Annotated[bytes, Field(strict=True, max_length=MEMBER_BYTES * MEMBERS_MAX)]
SomeMembers = Annotated[Members, Field(min_length=MEMBER_BYTES)]
Nodes = Annotated[bytes, Field(strict=True, max_length=NODE_BYTES * MEMBERS_MAX)]


class Message(BaseModel):
    """A control message; unknown or missing keys and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Hello(Message):
    """First frame of the side that dialled: who it is and which run it trains.

    `run` is the run's fingerprint; the four fields after it are what the fingerprint covers, as far as they
    help to say what differs when it does. `label` is the recipe's mark, free to choose. `share` is the part
    of the data that its trainers take, such as "0/4", empty if it was not told one.
    """

    protocol: Annotated[int, Field(strict=True, ge=1, le=65535)]
    node: NodeId
    incarnation: U64
    name: Name
    run: Annotated[bytes, Field(strict=True, min_length=32, max_length=32)]
    weights: Annotated[int, Field(strict=True, ge=1, le=2**31)]
    quantum_log2: Annotated[int, Field(strict=True, ge=-30, le=0)]
    mode: Name
    label: Annotated[str, Field(strict=True, max_length=200)]
    share: Annotated[str, Field(strict=True, pattern=r"^([0-9]{1,4}/[0-9]{1,4})?$")]


class Welcome(Hello):
    """Answer to HELLO from a side that accepts; from here on both are linked."""


class Reject(Message):
    """Answer to HELLO from a `node` that does not accept it, with the reason; then the connection ends.

    `incarnation`: the highest that it knows of the receiver, if the code is "behind", else 0.
    """

    node: U64
    code: Name
    words: Words
    incarnation: U64


class Status(Message):
    """What the sender has applied: the acknowledgement, the sign of life and the comparison of replicas in
    one.

    `frontier` is a packed table of `FrontierRow`s; `view` is the number of the latest view it knows (0:
    none), `founding` that of the run's first view; `ready`: it is a member whose replica is complete;
    `confirmed` is a packed table of `ConfirmedRow`s; `unwanted` lists the members that a READY sender wants
    out of that view; `loop_lag_ms` tells how late the sender's loop runs; `ring` is a packed `RingState`,
    empty in asynchronous mode.
    """

    frontier: Frontier
    view: U64
    founding: U64
    ready: Annotated[bool, Field(strict=True)]
    confirmed: Confirmed
    unwanted: Nodes
    loop_lag_ms: Annotated[int, Field(strict=True, ge=0, le=2**31)]
    ring: Annotated[bytes, Field(strict=True, max_length=STATE_BYTES_MAX)]


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


class Prepare(Message):
    """Phase 1 of deciding view `view` (single-decree Paxos, [Lamport 1998]): asks the members of the view
    before it to promise not to accept a lower ballot. A ballot is (`round`, `node` of the proposer).
    """

    view: Sequence
    round: Sequence
    node: U64


class Promise(Message):
    """Answer to PREPARE: the ballot promised, and the one accepted last with its value.

    A ballot higher than the one asked for is a refusal, of a PREPARE or of an ACCEPT. `accepted_round` 0:
    nothing accepted yet, and `members` and `forbidden` are empty, `founding` is 0.
    """

    view: Sequence
    round: Sequence
    node: U64
    accepted_round: U64
    accepted_node: U64
    members: Members
    forbidden: Nodes
    founding: U64

    @model_validator(mode="after")
    def _value_iff_accepted(self) -> Self:
        accepted = self.accepted_round > 0
        if bool(self.members) != accepted or (
            not accepted and (self.accepted_node or self.forbidden or self.founding)
        ):
            raise ValueError("an accepted value has members, and without one all its fields are empty")
        return self


class Accept(Message):
    """Phase 2: asks to accept this value for view `view` at this ballot."""

    view: Sequence
    round: Sequence
    node: U64
    members: SomeMembers
    forbidden: Nodes
    founding: U64


class Accepted(Message):
    """Answer to ACCEPT: accepted at this ballot, and on disk."""

    view: Sequence
    round: Sequence
    node: U64


class ViewNews(Message):
    """A view that was decided; sent to whoever shows in its STATUS that it knows only an older one."""

    view: Sequence
    members: SomeMembers
    forbidden: Nodes
    founding: U64


class SnapshotRequest(Message):
    """Asks for a whole replica; answered by SNAPSHOT_META or by SNAPSHOT_END with the reason."""

    view: U64


class SnapshotMeta(Message):
    """The snapshot that begins: its frontier as packed `FrontierRow`s, and its digest."""

    frontier: Frontier
    digest: U64


class SnapshotEnd(Message):
    """The last word of a snapshot; `words` say why there is none, or are empty if it is whole: then `tail` is
    how many frames of the sender's log came after the coordinates.
    """

    words: Words
    tail: U64


class RingBegin(Message):
    """Begins an attempt of a view's ring: goes once around, each node passes it on before all else of it.

    `order`: the members' node ids, 8 bytes each, little endian, in the ring's order, the sender of the first
    one first; `round` is the first round of the attempt; `digest` is that of the weights, which all members
    must have.
    """

    view: Sequence
    attempt: Sequence
    round: Sequence
    order: Nodes
    digest: U64


class RingBucket(Message):
    """Before the first chunk of a bucket in a round: what its numbers are.

    `offset` and `count` in numbers; `kind`: 0 the changes of the run's weights from `offset` on, 1 an array
    of a script's own, to be summed alone (`offset` 0); `name` and `shape` as its trainer calls it, for
    people. `hop` RESULT_HOP: numbers of a result follow that the receiver did not complete, `contributors`
    is how many nodes' shares are in it (0 otherwise).
    """

    view: Sequence
    attempt: U64
    round: Sequence
    bucket: Annotated[int, Field(strict=True, ge=0, lt=BUCKETS_MAX)]
    kind: Annotated[int, Field(strict=True, ge=0, le=1)]
    offset: Annotated[int, Field(strict=True, ge=0, lt=2**31)]
    count: Annotated[int, Field(strict=True, ge=1, le=2**31)]
    name: Annotated[str, Field(strict=True, max_length=200)]
    shape: Annotated[str, Field(strict=True, max_length=200)]
    hop: Annotated[int, Field(strict=True, ge=0, le=RESULT_HOP)]
    contributors: Annotated[int, Field(strict=True, ge=0, le=MEMBERS_MAX)]


class Peers(Message):
    """Where the sender can be dialled, and where others can that are linked to it; hints, no more.

    `ip` is the sender's own address as 16 bytes, or empty: the one that the receiver sees, with this `port`.
    `peers` is a packed table of `PeerRow`s.
    """

    ip: Annotated[bytes, Field(strict=True, max_length=IP_BYTES)]
    port: Annotated[int, Field(strict=True, ge=1, le=65535)]
    peers: Annotated[bytes, Field(strict=True, max_length=PEER_BYTES * MEMBERS_MAX)]


MESSAGES: Final[dict[FrameType, type[Message]]] = {
    FrameType.HELLO: Hello,
    FrameType.WELCOME: Welcome,
    FrameType.REJECT: Reject,
    FrameType.STATUS: Status,
    FrameType.NEED: Need,
    FrameType.GAP: Gap,
    FrameType.GOODBYE: Goodbye,
    FrameType.PREPARE: Prepare,
    FrameType.PROMISE: Promise,
    FrameType.ACCEPT: Accept,
    FrameType.ACCEPTED: Accepted,
    FrameType.VIEW: ViewNews,
    FrameType.SNAPSHOT_REQUEST: SnapshotRequest,
    FrameType.SNAPSHOT_META: SnapshotMeta,
    FrameType.SNAPSHOT_END: SnapshotEnd,
    FrameType.RING_BEGIN: RingBegin,
    FrameType.RING_BUCKET: RingBucket,
    FrameType.PEERS: Peers,
}
_TYPES: Final = {message: frame_type for frame_type, message in MESSAGES.items()}
_KEYS: Final = {frame_type: len(message.model_fields) for frame_type, message in MESSAGES.items()}


def pack_message(message: Message) -> bytes:
    """The whole frame of a control message."""
    body: bytes = msgpack.packb(vars(message))  # it is flat
    return pack_frame(_TYPES[type(message)], body)


def parse_message(frame_type: FrameType, body: Body) -> Message:
    """The message in a control frame's body; PeerError if it is not exactly that."""
    model = MESSAGES[frame_type]
    try:
        fields = unpack_flat_map(body, keys_max=_KEYS[frame_type])
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PeerError("message", f"{frame_type.name} field {where!r:.40}: {first['msg']}") from None
    except ValueError as error:
        raise PeerError("message", f"the body of a {frame_type.name} is not a valid map: {error}") from None
