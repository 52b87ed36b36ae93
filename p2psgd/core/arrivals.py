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


def event_of(peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> Event | None:  # noqa: PLR0911
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
    match parse_message(frame_type, body):
        case Status() as status:
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
            return SnapshotBegun(peer, parse_frontier(meta.frontier), meta.digest, meta.tail)
        case SnapshotEnd() as end:
            return SnapshotEnded(peer, end.words)
    return None
