"""Control messages of the protocol: their fields, tables and maps, and the addresses in them.

More than 700 lines, since it is one list: each message is a class with its limits, as SPEC.md has them.
"""

from __future__ import annotations

import functools
import ipaddress
import math
import operator
import struct
from collections.abc import Iterable
from typing import Annotated, Any, Final, NamedTuple, Self

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from p2psgd.wire.evaluation import ATTEMPTS_MAX
from p2psgd.wire.fixed_point import GROUPS_MAX, PORTIONS_MAX
from p2psgd.wire.frames import EVALUATION_NUMBERS_MAX, ORIGINS_MAX, Body, FrameType, pack_frame
from p2psgd.wire.mode import WORD_MAX
from p2psgd.wire.reject import PeerError, RejectCode, rejection
from p2psgd.wire.ring_messages import BUCKETS_MAX, RESULT_HOP, STATE_BYTES

__all__ = [
    "FOREIGN_REJECT",
    "MEMBERS_MAX",
    "MESSAGES",
    "ORIGINS_MAX",
    "PROTOCOL_VERSION",
    "TEXT_MAX",
    "U64_MAX",
    "Accept",
    "Accepted",
    "ConfirmedRow",
    "EvaluationFetch",
    "EvaluationLease",
    "EvaluationReport",
    "EvaluationResult",
    "EvaluationTable",
    "Fetch",
    "FrontierRow",
    "Goodbye",
    "Hello",
    "MemberRow",
    "Message",
    "OtherProtocolError",
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
    "Trimmed",
    "ViewNews",
    "Welcome",
    "pack_confirmed",
    "pack_frontier",
    "pack_members",
    "pack_message",
    "pack_nodes",
    "parse_confirmed",
    "parse_frontier",
    "parse_members",
    "parse_message",
    "parse_nodes",
]


# ----------------------------------------------------------------------------
# The packed tables that travel in control messages as one `bin` each: rows of little-endian u64.
#
# A table is what MessagePack arrays would be, without the lists of objects that hostile bytes could claim.
# Rows ascend strictly by their first columns, so a table lists each thing once and equal tables are equal
# bytes.


MEMBERS_MAX: Final = 1024  # members of a view, and as many forbidden nodes
U64_MAX: Final = 2**64 - 1

ROW_BYTES: Final = 64
CONFIRMED_BYTES: Final = 24
MEMBER_BYTES: Final = 24
NODE_BYTES: Final = 8


class FrontierRow(NamedTuple):
    """A row of a frontier, for one origin.

    `sequence` is the last contiguous update applied, `digest` the running digest there. `trimmed_to`: up to
    here the sender's log holds none. `durable`: up to here they are in its latest checkpoint. `least`: up to
    here all members listed in the STATUS's `confirmed`, and the sender, have applied them. `steps`: the
    origin's count of training steps by then. The last four are at most what they belong to and may be 0.
    """

    node: int
    incarnation: int
    sequence: int
    digest: int
    trimmed_to: int = 0
    durable: int = 0
    least: int = 0
    steps: int = 0


class MemberRow(NamedTuple):
    """A member of a view, and the number of the view since which it has been one without a break."""

    node: int
    incarnation: int
    since: int


class ConfirmedRow(NamedTuple):
    """An incarnation from which the sender receives frames. `view`: the latest that it has reported, if it is
    a member and the sender's log reaches back to where its log begins, for all origins; else 0, and `least`
    does not hold for it.
    """

    node: int
    incarnation: int
    view: int


_ROW: Final = struct.Struct("<QQQQQQQQ")
_CONFIRMED: Final = struct.Struct("<QQQ")
_MEMBER: Final = struct.Struct("<QQQ")
_NODE: Final = struct.Struct("<Q")
_FLOAT: Final = struct.Struct("<f")


def pack_frontier(rows: list[FrontierRow]) -> bytes:
    """Pack the rows, sorted by node and incarnation, 64 bytes each."""
    return b"".join(_ROW.pack(*row) for row in sorted(rows))


def parse_frontier(table: bytes) -> list[FrontierRow]:
    """Parse the rows of a packed frontier; PeerError unless whole, strictly ascending by origin, each with a
    sequence of at least 1, and no trimmed_to, durable or least beyond it.
    """
    rows = [FrontierRow._make(row) for row in unpack_table(_ROW, table, keys=2, what="frontier")]
    for _, _, sequence, _, trimmed_to, durable, least, _ in rows:
        if sequence == 0:
            raise PeerError(RejectCode.MESSAGE, "a frontier names an origin of which nothing was applied")
        if trimmed_to > sequence or durable > sequence or least > sequence:
            raise PeerError(
                RejectCode.MESSAGE, "a frontier's row is trimmed or acknowledged beyond its sequence"
            )
    return rows


def pack_confirmed(rows: list[ConfirmedRow]) -> bytes:
    """Pack the rows, sorted, 24 bytes each."""
    return b"".join(_CONFIRMED.pack(*row) for row in sorted(rows))


def parse_confirmed(table: bytes) -> list[ConfirmedRow]:
    """Parse the rows; PeerError unless whole and strictly ascending by node."""
    rows = unpack_table(_CONFIRMED, table, keys=1, what="table of confirmed views")
    return [ConfirmedRow._make(row) for row in rows]


def pack_members(members: Iterable[MemberRow]) -> bytes:
    """Pack the rows, sorted, 24 bytes each."""
    return b"".join(_MEMBER.pack(*member) for member in sorted(members))


def parse_members(table: bytes) -> list[MemberRow]:
    """Parse the rows; PeerError unless whole and strictly ascending by node."""
    return [MemberRow._make(row) for row in unpack_table(_MEMBER, table, keys=1, what="list of members")]


def pack_nodes(nodes: Iterable[int]) -> bytes:
    """Pack node ids, sorted, 8 bytes each."""
    return b"".join(_NODE.pack(node) for node in sorted(nodes))


def parse_nodes(table: bytes) -> list[int]:
    """Parse the ids; PeerError unless whole and strictly ascending."""
    return [row[0] for row in unpack_table(_NODE, table, keys=1, what="list of nodes")]


def unpack_table(row: struct.Struct, table: bytes, *, keys: int, what: str) -> list[tuple[Any, ...]]:
    """Unpack the rows; PeerError unless whole and strictly ascending by their first `keys` columns."""
    if len(table) % row.size:
        raise PeerError(RejectCode.MESSAGE, f"a {what} of {len(table)} bytes is not a multiple of {row.size}")
    rows = list(row.iter_unpack(table))
    named = [each[:keys] for each in rows]
    if any(map(operator.ge, named, named[1:])):
        raise PeerError(RejectCode.MESSAGE, f"the rows of a {what} are not in ascending order")
    return rows


# ----------------------------------------------------------------------------
# MessagePack maps from untrusted bytes: no key twice, no extension types, bounded arrays and maps.


MAP_KEYS_MAX: Final = 256

Pairs = list[tuple[Any, Any]]


Fields = dict[str, Any]  # of a map as it came, before a model has checked their types


def unpack_map(data: bytes | bytearray, *, array_max: int, lists: bool = False) -> Fields:
    """Unpack a map with text keys from `data`; arrays in it have at most `array_max` elements and are tuples
    unless `lists`.

    ValueError with a few words if it is not exactly one such map.
    """
    hooks = {"use_list": lists, "object_pairs_hook": _unique_keys}
    return _unpack(data, max_array_len=array_max, max_map_len=MAP_KEYS_MAX, **hooks)


def unpack_flat_map(data: bytes | bytearray | memoryview, *, keys_max: int) -> Fields:
    """Unpack a map from `data` with at most `keys_max` text keys, and no array or map in it.

    ValueError as above. Takes less than 64 KiB, and 64 KiB a key, beside what it returns: of maps in maps
    MessagePack opens at most 1,024 before it gives up, and here the first one that ends is the last.
    """
    complete = False

    def only_one(pairs: Pairs) -> Fields:
        nonlocal complete
        if complete:
            raise ValueError("a map within a map")
        complete = True
        return _unique_keys(pairs)

    limits = {"max_array_len": 0, "max_map_len": keys_max}
    return _unpack(data, object_pairs_hook=only_one, list_hook=_refuse_array, **limits)


def _unpack(data: bytes | bytearray | memoryview, **options: Any) -> Fields:
    try:
        fields = msgpack.unpackb(
            data, ext_hook=_refuse_extension, strict_map_key=True, max_ext_len=0, **options
        )
    except (RecursionError, msgpack.exceptions.StackError):
        raise ValueError("nested too deeply") from None
    except msgpack.exceptions.FormatError:
        raise ValueError("a byte that MessagePack does not have") from None
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"{error!s:.100}") from None
    if not isinstance(fields, dict):
        raise ValueError("not a map")
    return fields


def _unique_keys(pairs: Pairs) -> Fields:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    for key in fields:
        if not isinstance(key, str):
            raise ValueError("a key is not text")
    return fields


def _refuse_array(_: list[Any]) -> Any:
    raise ValueError("an array")


def _refuse_extension(code: int, _: bytes) -> Any:
    raise ValueError(f"extension type {code}")


# ----------------------------------------------------------------------------
# Addresses at which peers can be dialled, as they travel in PEERS: 16 bytes and a port.
#
# IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2), so that a row has one form.


IP_BYTES: Final = 16
PEER_BYTES: Final = 26

_PEER: Final = struct.Struct("<Q16sH")
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class PeerRow(NamedTuple):
    """A node, and an address where it is said to be dialled."""

    node: int
    ip: IPAddress
    port: int


def plain_ip(text: str) -> IPAddress:
    """Parse an address; one that is mapped into IPv6 is IPv4. ValueError if `text` is not one."""
    ip = ipaddress.ip_address(text)
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def pack_ip(ip: IPAddress) -> bytes:
    """Pack an address into 16 bytes, in network order; a scope is left out."""
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


@functools.lru_cache(maxsize=4096)  # the same few come again and again
def parse_ip(packed: bytes) -> IPAddress:
    """Parse an address; PeerError if it is not 16 bytes, or none that one node can have."""
    if len(packed) != IP_BYTES:
        raise PeerError(RejectCode.MESSAGE, f"an address of {len(packed)} bytes has not {IP_BYTES}")
    six = ipaddress.IPv6Address(packed)
    ip = six.ipv4_mapped or six
    if ip.is_unspecified or ip.is_multicast or ip == _BROADCAST:
        raise PeerError(RejectCode.MESSAGE, f"{ip} is no address of a node")
    return ip


def pack_peers(rows: Iterable[PeerRow]) -> bytes:
    """Pack the rows, sorted by node, 26 bytes each; no node may stand there twice."""
    return b"".join(
        _PEER.pack(row.node, pack_ip(row.ip), row.port) for row in sorted(rows, key=lambda row: row.node)
    )


def parse_peers(table: bytes) -> list[PeerRow]:
    """Parse the rows; PeerError unless whole, strictly ascending by node, each with an address and a port."""
    rows = []
    for node, ip, port in unpack_table(_PEER, table, keys=1, what="table of peers"):
        if port == 0:
            raise PeerError(RejectCode.MESSAGE, "a table of peers has a row with port 0")
        rows.append(PeerRow(node, parse_ip(ip), port))
    return rows


# ----------------------------------------------------------------------------
# Control messages: MessagePack maps with exactly the keys listed here, strictly typed both ways.
#
# Everything that is not an UPDATE or a part of a snapshot. Flat maps of integers, strings and bytes on
# purpose: no nesting means no depth to bound and little for a hostile body to make us allocate. Rows travel
# in a packed table (see above), and a reader of a message finds its tables' names here too.


PROTOCOL_VERSION: Final = 3
TEXT_MAX: Final = 900  # code points: with a code, and 4 bytes each, a REJECT still fits its frame

U64 = Annotated[int, Field(strict=True, ge=0, le=U64_MAX)]
# 0 is reserved: origin (0, 0) is a dense ring's
NodeId = Annotated[int, Field(strict=True, ge=1, le=U64_MAX)]
Sequence = Annotated[int, Field(strict=True, ge=1, le=U64_MAX)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=64)]
Text = Annotated[str, Field(strict=True, max_length=TEXT_MAX)]
Frontier = Annotated[bytes, Field(strict=True, max_length=ROW_BYTES * ORIGINS_MAX)]
Confirmed = Annotated[bytes, Field(strict=True, max_length=CONFIRMED_BYTES * MEMBERS_MAX)]
Members = Annotated[bytes, Field(strict=True, max_length=MEMBER_BYTES * MEMBERS_MAX)]
SomeMembers = Annotated[Members, Field(min_length=MEMBER_BYTES)]
Nodes = Annotated[bytes, Field(strict=True, max_length=NODE_BYTES * MEMBERS_MAX)]
HELD_MAX: Final = 2  # portions that a member has computed and not added
LEASES_MAX: Final = 2  # to a member: what it computes, and what comes next
Attempt = Annotated[int, Field(strict=True, ge=0, le=ATTEMPTS_MAX)]
PortionCount = Annotated[int, Field(strict=True, ge=1, le=PORTIONS_MAX)]
PortionSet = Annotated[bytes, Field(strict=True, max_length=PORTIONS_MAX // 8)]
ExponentTable = Annotated[bytes, Field(strict=True, max_length=2 * GROUPS_MAX)]


class Message(BaseModel):
    """A control message; unknown or missing keys and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Hello(Message):
    """The first frame of the side that dialled: which node it is and which run it trains.

    `run` is the run's fingerprint; the four fields after it are what the fingerprint covers, as far as they
    help to say what differs when it does. `label` is the recipe's mark, free to choose. `rank` is the part of
    the data that its trainers take, such as "0/4", empty if it was given none.
    """

    protocol: Annotated[int, Field(strict=True, ge=1, le=65535)]
    node: NodeId
    incarnation: U64
    name: Name
    run: Annotated[bytes, Field(strict=True, min_length=32, max_length=32)]
    weights: Annotated[int, Field(strict=True, ge=1, le=2**31)]
    quantum_log2: Annotated[int, Field(strict=True, ge=-30, le=0)]
    mode: Annotated[str, Field(strict=True, min_length=1, max_length=WORD_MAX)]
    label: Annotated[str, Field(strict=True, max_length=200)]
    rank: Annotated[str, Field(strict=True, pattern=r"^([0-9]{1,4}/[0-9]{1,4})?$")]


class Welcome(Hello):
    """The answer to HELLO from a side that accepts; from here on both are linked."""


class Reject(Message):
    """The answer to HELLO from a `node` that does not accept it, or the last frame of a link that it ends.

    `code` is a `RejectCode`, perhaps one that only a later version knows; `details` say what exactly was
    wrong, empty if the code says it all. `incarnation`: the highest that it knows of the receiver, if the
    code is BEHIND; else 0.
    """

    node: U64
    code: Annotated[int, Field(strict=True, ge=0, le=65535)]
    details: Text
    incarnation: U64

    def to_error(self) -> PeerError:
        """Return the rejection as an error with a known code and a sentence for people."""
        return rejection(self.code, self.details)


# What a REJECT with other keys than this version's is taken for: who sent it and why cannot be read.
FOREIGN_REJECT: Final = Reject(
    node=0,
    code=0,  # OTHER
    details="rejected by a peer of another protocol version",
    incarnation=0,
)


class Status(Message):
    """The sender's status: the acknowledgement of what it has applied, the sign of life and the comparison of
    replicas in one.

    `frontier` is a packed table of `FrontierRow`s; `view` is the number of the latest view it knows (0:
    none), `cluster_id` the one of the run's first view; `ready`: it is a member whose replica is complete;
    `confirmed` is a packed table of `ConfirmedRow`s; `whole`: rows that are not in these two tables do not
    exist, else they are as in the STATUS before; `evict_requests` lists the members that a READY sender wants
    out of that view; `loss` is that of the sender's trainer, as `pack_loss` gives it, for people, and `steps`
    its count of mini-batches, in mode `owners`; `ring` is a packed `RingState`, empty without a ring.
    """

    frontier: Frontier
    view: U64
    cluster_id: U64
    ready: Annotated[bool, Field(strict=True)]
    confirmed: Confirmed
    whole: Annotated[bool, Field(strict=True)]
    evict_requests: Nodes
    loss: Annotated[int, Field(strict=True, ge=0, lt=2**32)]
    steps: U64
    ring: Annotated[bytes, Field(strict=True, max_length=STATE_BYTES)]


def pack_loss(loss: float | None) -> int:
    """Return the bits of a loss as float32; those of a NaN if it is not known, or no such number."""
    try:
        packed = _FLOAT.pack(math.nan if loss is None else loss)
    except OverflowError:
        packed = _FLOAT.pack(math.nan)
    return int.from_bytes(packed, "little")


def parse_loss(bits: int) -> float | None:
    """Return the loss that these 32 bits stand for; None if it is not known."""
    loss: float = _FLOAT.unpack(bits.to_bytes(4, "little"))[0]
    return loss if math.isfinite(loss) else None


class Fetch(Message):
    """A request for updates `first`..`last` of one origin to any node that holds them."""

    node: U64
    incarnation: U64
    first: Sequence
    last: Sequence


class Trimmed(Message):
    """The answer to FETCH: updates up to `trimmed_to` of that origin are no longer held."""

    node: U64
    incarnation: U64
    trimmed_to: Sequence


class Goodbye(Message):
    """The last frame of a clean stop; `sequence` is the sender's last own update, 0 if it sent none."""

    sequence: U64


class Prepare(Message):
    """The request of phase 1 of deciding view `view` (single-decree Paxos, [Lamport 1998]): asks the members
    of the view before it to promise not to accept a lower ballot. A ballot is (`round`, `node` of the
    proposer).
    """

    view: Sequence
    round: Sequence
    node: U64


class Promise(Message):
    """The answer to PREPARE: the ballot promised, and the one accepted last with its value.

    A ballot higher than the one asked for is a refusal, of a PREPARE or of an ACCEPT. `accepted_round` 0:
    nothing accepted yet, and `members` and `forbidden` are empty, `cluster_id` is 0.
    """

    view: Sequence
    round: Sequence
    node: U64
    accepted_round: U64
    accepted_node: U64
    members: Members
    forbidden: Nodes
    cluster_id: U64

    @model_validator(mode="after")
    def _value_iff_accepted(self) -> Self:
        accepted = self.accepted_round > 0
        if bool(self.members) != accepted or (
            not accepted and (self.accepted_node or self.forbidden or self.cluster_id)
        ):
            raise ValueError("an accepted value has members, and without one all its fields are empty")
        return self


class Accept(Message):
    """The request of phase 2: asks to accept this value for view `view` at this ballot."""

    view: Sequence
    round: Sequence
    node: U64
    members: SomeMembers
    forbidden: Nodes
    cluster_id: U64


class Accepted(Message):
    """The answer to ACCEPT: accepted at this ballot, and on disk."""

    view: Sequence
    round: Sequence
    node: U64


class ViewNews(Message):
    """A view that was decided; sent to any node that shows in its STATUS that it knows only an older one."""

    view: Sequence
    members: SomeMembers
    forbidden: Nodes
    cluster_id: U64


class SnapshotRequest(Message):
    """A request for a whole replica; answered by SNAPSHOT_META or by SNAPSHOT_END with the reason."""

    view: U64


class SnapshotMeta(Message):
    """The snapshot that begins: its frontier as packed `FrontierRow`s, and its digest."""

    frontier: Frontier
    digest: U64


class SnapshotEnd(Message):
    """The last frame of a snapshot; `reason` says why there is none, or is empty if it is whole: then `tail`
    is how many frames of the sender's log came after the coordinates.
    """

    reason: Text
    tail: U64


class RingBegin(Message):
    """The beginning of a generation of a view's ring: goes once around, each node passes it on before all
    else of it.

    `round` is the first round of the generation; `digest` is that of the weights, which all members must
    have. The order of the ring follows from the view.
    """

    view: Sequence
    generation: Sequence
    round: Sequence
    digest: U64


class RingBucket(Message):
    """The description of a bucket's numbers, sent before its first chunk in a round.

    `offset` and `count` in numbers; `kind`: 0 the changes of the run's weights from `offset` on, 1 an array
    of a script's own, summed alone (`offset` 0); `name` and `shape` as its trainer calls it, for people.
    `hop` RESULT_HOP: numbers of a result follow that the receiver did not complete, `contributors` is how
    many nodes' contributions are in it (0 otherwise).
    """

    view: Sequence
    generation: U64
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
    """The addresses where the sender can be dialled, and where others can that are linked to it; hints, no
    more.

    `ip` is the sender's own address as 16 bytes, or empty: the one that the receiver sees, with this `port`.
    `peers` is a packed table of `PeerRow`s.
    """

    ip: Annotated[bytes, Field(strict=True, max_length=IP_BYTES)]
    port: Annotated[int, Field(strict=True, ge=1, le=65535)]
    peers: Annotated[bytes, Field(strict=True, max_length=PEER_BYTES * MEMBERS_MAX)]


class EvaluationReport(Message):
    """A member's standing in an evaluation, for the node that deals its portions.

    `digest` is of all that its trainer asks with; `limits` those of this attempt, and `exponents`
    the highest of all portions that it has computed in it. `added` are the portions in its sum, `held` those
    that it has computed and not added, with a checksum each in ascending order. `failed` is 0, or one more
    than a portion that it cannot compute, for the reason `words`. Not `active`: its trainer is gone, and what
    it has added as well.
    """

    evaluation: Sequence
    attempt: Attempt
    digest: U64
    portions: PortionCount
    limits: ExponentTable
    exponents: ExponentTable
    added: PortionSet
    held: PortionSet
    checksums: Annotated[bytes, Field(strict=True, max_length=8 * HELD_MAX)]
    failed: Annotated[int, Field(strict=True, ge=0, le=PORTIONS_MAX)]
    words: Text
    active: Annotated[bool, Field(strict=True)]


class EvaluationLease(Message):
    """The answer to EVALUATION_REPORT: what this member is to compute, and to add to its sum.

    `granted` are the portions that are in its sum, or that it must add; of those it holds, the ones in
    `decided` that are not granted are another's. A portion in its sum that is not granted is another's too:
    its sum must begin anew. `leases` are portions to compute, u16 each, in this order; `ahead`: the next one
    also before what the member holds is added. `error`: why the evaluation has ended; then all else is empty.
    """

    evaluation: Sequence
    attempt: Attempt
    limits: ExponentTable
    granted: PortionSet
    decided: PortionSet
    leases: Annotated[bytes, Field(strict=True, max_length=2 * LEASES_MAX)]
    ahead: Annotated[bool, Field(strict=True)]
    error: Text


class EvaluationTable(Message):
    """A table that names one member for each portion, in whose sum it is; members add up by it.

    `holders` are members, node and incarnation, u64 each, ascending; `assignment` the place of a member
    there, u16, by portion. Of two tables of an attempt the one with the higher (`number`, `leader`) holds;
    `leader` is the node that made it. `exponents`: the highest of all portions.
    """

    evaluation: Sequence
    attempt: Attempt
    number: Sequence
    leader: NodeId
    holders: Annotated[bytes, Field(strict=True, min_length=16, max_length=16 * MEMBERS_MAX)]
    assignment: Annotated[bytes, Field(strict=True, min_length=2, max_length=2 * PORTIONS_MAX)]
    exponents: ExponentTable


class EvaluationResult(Message):
    """An evaluation that is complete at the sender, which holds all from `first` to `last`.

    Sent when one is complete, with `evaluation` = `last`, and before the numbers of any that is fetched.
    """

    evaluation: Sequence
    first: Sequence
    last: Sequence
    digest: U64
    portions: PortionCount
    limits: ExponentTable
    exponents: ExponentTable


class EvaluationFetch(Message):
    """A request for `count` numbers from `offset` on, of the given kind (`evaluation.Kind`)."""

    evaluation: Sequence
    attempt: Attempt
    kind: Annotated[int, Field(strict=True, ge=0, le=2)]
    table: U64
    leader: U64
    offset: Annotated[int, Field(strict=True, ge=0, le=2**31)]
    count: Annotated[int, Field(strict=True, ge=1, le=EVALUATION_NUMBERS_MAX)]


MESSAGES: Final[dict[FrameType, type[Message]]] = {
    FrameType.HELLO: Hello,
    FrameType.WELCOME: Welcome,
    FrameType.REJECT: Reject,
    FrameType.STATUS: Status,
    FrameType.FETCH: Fetch,
    FrameType.TRIMMED: Trimmed,
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
    FrameType.EVALUATION_REPORT: EvaluationReport,
    FrameType.EVALUATION_LEASE: EvaluationLease,
    FrameType.EVALUATION_TABLE: EvaluationTable,
    FrameType.EVALUATION_RESULT: EvaluationResult,
    FrameType.EVALUATION_FETCH: EvaluationFetch,
}
_TYPES: Final = {message: frame_type for frame_type, message in MESSAGES.items()}
_KEYS: Final = {frame_type: len(message.model_fields) for frame_type, message in MESSAGES.items()}
# HELLO, WELCOME and REJECT are all that nodes of different versions exchange, and another may have more
# keys. 4,096 bytes of nested maps with so many keys each claim about 400 KB until the first ends.
GREETING_KEYS_MAX: Final = 32


class OtherProtocolError(PeerError):
    """A HELLO or WELCOME has another protocol number.

    `node`, `name` and `mode` are what stands there under these keys; 0 or empty if this version cannot read
    that.
    """

    def __init__(self, fields: Fields) -> None:
        super().__init__(
            RejectCode.PROTOCOL,
            f"protocol {fields['protocol']} there, {PROTOCOL_VERSION} here: install the same p2psgd on both",
        )
        node, name, mode = (fields.get(key) for key in ("node", "name", "mode"))
        self.node = node if type(node) is int and node > 0 else 0
        self.name = name[:64] if isinstance(name, str) else ""
        self.mode = mode[:WORD_MAX] if isinstance(mode, str) else ""


def pack_message(message: Message) -> bytes:
    """Pack a control message into a whole frame."""
    body: bytes = msgpack.packb(vars(message))  # it is flat
    return pack_frame(_TYPES[type(message)], body)


def parse_message(frame_type: FrameType, body: Body) -> Message:
    """Parse the body of a control frame; PeerError if it is not exactly one message of that type.

    OtherProtocolError for a greeting with another number, whatever else stands there. A REJECT with other
    keys is FOREIGN_REJECT.
    """
    model = MESSAGES[frame_type]
    greets = issubclass(model, Hello)
    try:
        fields = unpack_flat_map(
            body, keys_max=GREETING_KEYS_MAX if greets or model is Reject else _KEYS[frame_type]
        )
        if greets and _is_other_protocol(fields.get("protocol")):
            raise OtherProtocolError(fields)
        if model is Reject and fields.keys() != Reject.model_fields.keys():
            return FOREIGN_REJECT
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PeerError(
            RejectCode.MESSAGE, f"{frame_type.name} field {where!r:.40}: {first['msg']}"
        ) from None
    except ValueError as error:
        raise PeerError(
            RejectCode.MESSAGE, f"the body of a {frame_type.name} is not a valid map: {error}"
        ) from None


def _is_other_protocol(number: object) -> bool:
    """Return whether this is the number of a protocol, and not of this one."""
    return type(number) is int and 1 <= number <= 65535 and number != PROTOCOL_VERSION
