"""What a linked peer's frame means to the replica."""

from __future__ import annotations

from p2psgd.core.events import (
    Event,
    GapReceived,
    GoodbyeReceived,
    NeedReceived,
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
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import (
    Accept,
    Accepted,
    Gap,
    Goodbye,
    Message,
    Need,
    Prepare,
    Promise,
    SnapshotEnd,
    SnapshotMeta,
    SnapshotRequest,
    Status,
    ViewNews,
    parse_confirmed,
    parse_frontier,
    parse_message,
    parse_nodes,
)


def event_of(peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> Event | None:
    """The event; None for a REJECT, which says why the link ends; PeerError if the body is not what its type
    says.
    """
    match frame_type:
        case FrameType.UPDATE:
            return UpdateReceived(peer, body)
        case FrameType.SNAPSHOT_CHUNK:
            return SnapshotChunkReceived(peer, body)
        case FrameType.SNAPSHOT_TAIL:
            return SnapshotTailReceived(peer, body)
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
        case SnapshotRequest():
            return SnapshotAsked(peer)
        case SnapshotMeta() as meta:
            return SnapshotBegun(peer, parse_frontier(meta.frontier), meta.digest)
        case SnapshotEnd() as end:
            return SnapshotEnded(peer, end.words, end.tail)
    return None
