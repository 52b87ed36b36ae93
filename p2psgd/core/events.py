"""Events: what can happen to a replica, and how a peer's frames become events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import (
    Accept,
    Accepted,
    ConfirmedRow,
    FrontierRow,
    Gap,
    Goodbye,
    Message,
    Need,
    Prepare,
    Promise,
    RingBegin,
    RingBucket,
    SnapshotEnd,
    SnapshotMeta,
    SnapshotRequest,
    Status,
    ViewNews,
    parse_confirmed,
    parse_frontier,
    parse_message,
    parse_nodes,
    parse_order,
)
from p2psgd.wire.ring_messages import BucketShared, RingState, RoundShared, parse_ring_state
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# What a node brings back from its disk when it starts again.


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint: coordinates int32 (P,) at the frontier `rows` with `digest`, and the UPDATE frames of its
    `tail`; `own` are frames of this node's own updates since then, in order. `rounds`: how many of a sparse
    ring were complete then.
    """

    coordinates: NDArray[np.int32]
    rows: list[FrontierRow]
    digest: int
    tail: list[bytes]
    own: list[bytes]
    rounds: int = 0


# ----------------------------------------------------------------------------
# What can happen to a replica: past-tense facts, the only input of `Replica.handle`.


Vote = Prepare | Promise | Accept | Accepted | ViewNews


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """A peer is linked: both sides accepted each other."""

    peer: Origin
    name: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The link to a peer is gone, for whatever reason."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class LinkDrained:
    """What was sent to a peer has left our memory: it may be given more."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """The body of an UPDATE frame, unchecked."""

    peer: Origin
    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """A peer told what it has applied."""

    peer: Origin
    rows: Mapping[Origin, FrontierRow]
    view: int
    founding: int
    ready: bool
    confirmed: list[ConfirmedRow]
    unwanted: list[int]
    loop_lag_ms: int
    ring: RingState | None = None  # in ring mode


@dataclass(frozen=True, slots=True)
class NeedReceived:
    """A peer asked for updates first..last of an origin."""

    peer: Origin
    origin: Origin
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class GapReceived:
    """A peer no longer holds an origin's updates up to `floor`."""

    peer: Origin
    origin: Origin
    floor: int


@dataclass(frozen=True, slots=True)
class VoteReceived:
    """A peer's word in the deciding of a view."""

    peer: Origin
    message: Vote


@dataclass(frozen=True, slots=True)
class GoodbyeReceived:
    """A peer stops for good: it is to leave the view."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class SnapshotAsked:
    """A peer wants a whole replica."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class SnapshotBegun:
    """A peer begins to send its replica: `rows` and `digest` are those of the snapshot."""

    peer: Origin
    rows: list[FrontierRow]
    digest: int


@dataclass(frozen=True, slots=True)
class SnapshotChunkReceived:
    """The next coordinates, little-endian int32."""

    peer: Origin
    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class SnapshotTailReceived:
    """The body of an UPDATE frame from the sender's log, unchecked."""

    peer: Origin
    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The snapshot is whole, with `tail` frames of the sender's log, or `words` say why there is none."""

    peer: Origin
    words: str
    tail: int


@dataclass(frozen=True, slots=True)
class RingBegun:
    """A peer, the left neighbour in `order`, passes on that an attempt of a view's ring begins."""

    peer: Origin
    view: int
    attempt: int
    round: int
    order: tuple[int, ...]
    digest: int


@dataclass(frozen=True, slots=True)
class RingUpdateReceived:
    """The body of a RING_UPDATE frame, unchecked."""

    peer: Origin
    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class RingBucketReceived:
    """A peer says what the numbers of a bucket are."""

    peer: Origin
    message: RingBucket


@dataclass(frozen=True, slots=True)
class RingChunkReceived:
    """The body of a RING_CHUNK frame, unchecked; a memoryview is good only while this is handled."""

    peer: Origin
    body: Body


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """How fast a link is, as far as is known now: said again when it changes. 0: not known."""

    peer: Origin
    round_trip_us: int
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class TrainerChanged:
    """In ring mode: from now on this node has, or has not, a trainer that takes part in rounds. A share that
    it has not given whole by then is void.
    """

    active: bool


@dataclass(frozen=True, slots=True)
class VotesSaved:
    """SaveVotes of this revision has reached the disk."""

    revision: int


@dataclass(frozen=True, slots=True)
class RemovalAsked:
    """A person wants a node out of the view; `forbid`: never to be admitted again."""

    node: int
    forbid: bool


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """The node's state is to be written to disk: take a consistent copy."""


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The last copy ordered by WriteCheckpoint is on disk; False: it could not be written."""

    written: bool


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """What ReadCheckpoint found: nobody else has its coordinates, and `own` is empty. None: nothing whole."""

    found: Restored | None


@dataclass(frozen=True, slots=True)
class TurnPassed:
    """The turn of the loop that NextTurn asked for."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened, but `now` has moved: several times a second. `loop_lag_ms`: how late the event loop
    was, which peers are told.
    """

    loop_lag_ms: int = 0


@dataclass(frozen=True, slots=True)
class BootstrapExpectChanged:
    """The list of peers has changed: so many `nodes`, this one included, are to found the run together."""

    nodes: int


@dataclass(frozen=True, slots=True)
class ScrubRequested:
    """A person wants the digest compared with the weights in memory now."""


@dataclass(frozen=True, slots=True)
class NodeStopping:
    """This node is about to close its links for good; `why`, in its own log, for people."""

    why: str = ""


SnapshotEvent = SnapshotAsked | SnapshotBegun | SnapshotChunkReceived | SnapshotTailReceived | SnapshotEnded
RoundEvent = RingUpdateReceived | RingBucketReceived | RingChunkReceived
RingEvent = RingBegun | RoundEvent
LinkEvent = (
    LinkDrained
    | UpdateReceived
    | StatusReceived
    | NeedReceived
    | GapReceived
    | VoteReceived
    | GoodbyeReceived
    | SnapshotEvent
    | RingEvent
    | LinkMeasured
)
Event = (
    OwnUpdateMade
    | LinkOpened
    | LinkClosed
    | LinkEvent
    | TrainerChanged
    | RoundShared
    | BucketShared
    | VotesSaved
    | RemovalAsked
    | CheckpointDue
    | CheckpointWritten
    | CheckpointRead
    | TurnPassed
    | TimePassed
    | BootstrapExpectChanged
    | ScrubRequested
    | NodeStopping
)


# ----------------------------------------------------------------------------
# What a linked peer's frame means to the replica.


def event_of(peer: Origin, frame_type: FrameType, body: Body) -> Event | None:
    """The event; None for what the replica has nothing to do with: a REJECT, which says why the link ends, a
    PROBE and PEERS. PeerError if the body is not what its type says.
    """
    if frame_type is FrameType.RING_CHUNK:
        return RingChunkReceived(peer, body)
    assert not isinstance(body, memoryview), f"a {frame_type.name} is kept: its body must be its own"
    match frame_type:
        case FrameType.UPDATE:
            return UpdateReceived(peer, body)
        case FrameType.SNAPSHOT_CHUNK:
            return SnapshotChunkReceived(peer, body)
        case FrameType.SNAPSHOT_TAIL:
            return SnapshotTailReceived(peer, body)
        case FrameType.RING_UPDATE:
            return RingUpdateReceived(peer, body)
        case FrameType.PROBE | FrameType.PEERS:
            return None
        case _:
            message = parse_message(frame_type, body)
    if isinstance(message, Status):
        return _event_of_status(peer, message)
    return _event_of_message(peer, message)


def _event_of_status(peer: Origin, status: Status) -> Event:
    return StatusReceived(
        peer,
        {Origin(row.node, row.incarnation): row for row in parse_frontier(status.frontier)},
        status.view,
        status.founding,
        status.ready,
        parse_confirmed(status.confirmed),
        parse_nodes(status.unwanted),
        status.loop_lag_ms,
        parse_ring_state(status.ring) if status.ring else None,
    )


def _event_of_message(peer: Origin, message: Message) -> Event | None:
    match message:
        case Need() as need:
            return NeedReceived(peer, Origin(need.node, need.incarnation), need.first, need.last)
        case Gap() as gap:
            return GapReceived(peer, Origin(gap.node, gap.incarnation), gap.floor)
        case Goodbye():
            return GoodbyeReceived(peer)
        case (Prepare() | Promise() | Accept() | Accepted() | ViewNews()) as vote:
            return VoteReceived(peer, vote)
        case _:
            return _event_of_whole(peer, message)


def _event_of_whole(peer: Origin, message: Message) -> Event | None:
    """What is about a whole replica, or about rounds."""
    match message:
        case SnapshotRequest():
            return SnapshotAsked(peer)
        case SnapshotMeta() as meta:
            return SnapshotBegun(peer, parse_frontier(meta.frontier), meta.digest)
        case SnapshotEnd() as end:
            return SnapshotEnded(peer, end.words, end.tail)
        case RingBegin() as begin:
            order = parse_order(begin.order)
            return RingBegun(peer, begin.view, begin.attempt, begin.round, order, begin.digest)
        case RingBucket():
            return RingBucketReceived(peer, message)
        case _:
            return None
