"""What a linked peer's frame means to the replica."""

from __future__ import annotations

from p2psgd.core.events import (
    Event,
    GapReceived,
    GoodbyeReceived,
    NeedReceived,
    RingBegun,
    RingBucketReceived,
    RingChunkReceived,
    RingUpdateReceived,
    SnapshotAsked,
    SnapshotBegun,
    SnapshotChunkReceived,
    SnapshotEnded,
    SnapshotTailReceived,
    StatusReceived,
    UpdateReceived,
    VoteReceived,
)
from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import (
    Accept,
    Accepted,
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
from p2psgd.wire.ring import parse_ring_state


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
