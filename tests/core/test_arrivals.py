"""Every frame type that a linked peer may send becomes the event that it means."""

from __future__ import annotations

import pytest

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
    event_of,
)
from p2psgd.core.frontier import Origin
from p2psgd.errors import PeerError
from p2psgd.wire.frames import PREFIX, FrameType, link_limits
from p2psgd.wire.messages import (
    Accept,
    Accepted,
    ConfirmedRow,
    FrontierRow,
    Gap,
    Goodbye,
    MemberRow,
    Message,
    Need,
    Prepare,
    Promise,
    Reject,
    RingBegin,
    RingBucket,
    SnapshotEnd,
    SnapshotMeta,
    SnapshotRequest,
    Status,
    ViewNews,
    pack_confirmed,
    pack_frontier,
    pack_members,
    pack_message,
    pack_nodes,
    pack_order,
)
from p2psgd.wire.ring_messages import RingState, pack_ring_state
from tests.core.cluster import by_origin

PEER, OTHER = Origin(2, 5), Origin(3, 6)
ROWS = [FrontierRow(*PEER, 9, 1, floor=2, durable=3, least=4, mini_batch=5)]
CONFIRMED = [ConfirmedRow(*OTHER, 4)]
VOTES: list[Prepare | Promise | Accept | Accepted | ViewNews] = [
    Prepare(view=4, round=1, node=2),
    Promise(
        view=4, round=1, node=2, accepted_round=0, accepted_node=0, members=b"", forbidden=b"", founding=0
    ),
    Accept(view=4, round=1, node=2, members=pack_members([MemberRow(2, 5, 1)]), forbidden=b"", founding=8),
    Accepted(view=4, round=1, node=2),
    ViewNews(view=4, members=pack_members([MemberRow(2, 5, 1)]), forbidden=b"", founding=8),
]
STANDING = RingState(attempt=7, round=12, running=True, active=False, contributed=True)
BUCKET = RingBucket(
    view=4,
    attempt=7,
    round=12,
    bucket=1,
    kind=0,
    offset=40,
    count=1000,
    name="output",
    shape="10 x 100",
    hop=0,
    contributors=0,
)
MEANT: list[tuple[Message, Event | None]] = [
    (
        Status(
            frontier=pack_frontier(ROWS),
            view=4,
            founding=8,
            ready=True,
            confirmed=pack_confirmed(CONFIRMED),
            unwanted=pack_nodes([5]),
            loop_lag_ms=3,
            ring=b"",
        ),
        StatusReceived(PEER, by_origin(ROWS), 4, 8, True, CONFIRMED, [5], 3),
    ),
    (
        Status(
            frontier=b"",
            view=4,
            founding=8,
            ready=True,
            confirmed=b"",
            unwanted=b"",
            loop_lag_ms=0,
            ring=pack_ring_state(STANDING),
        ),
        StatusReceived(PEER, {}, 4, 8, True, [], [], 0, STANDING),
    ),
    (Need(node=3, incarnation=6, first=2, last=7), NeedReceived(PEER, OTHER, 2, 7)),
    (Gap(node=3, incarnation=6, floor=7), GapReceived(PEER, OTHER, 7)),
    (Goodbye(sequence=9), GoodbyeReceived(PEER)),
    (Reject(node=2, code="full", words="no room", incarnation=0), None),
    *((vote, VoteReceived(PEER, vote)) for vote in VOTES),
    (SnapshotRequest(view=4), SnapshotAsked(PEER)),
    (SnapshotMeta(frontier=pack_frontier(ROWS), digest=11), SnapshotBegun(PEER, ROWS, 11)),
    (SnapshotEnd(words="busy", tail=0), SnapshotEnded(PEER, "busy", 0)),
    (
        RingBegin(view=4, attempt=7, round=12, order=pack_order([2, 9, 5]), digest=11),
        RingBegun(PEER, 4, 7, 12, (2, 9, 5), 11),
    ),
    (BUCKET, RingBucketReceived(PEER, BUCKET)),
]
BODIES = {
    FrameType.UPDATE: UpdateReceived,
    FrameType.SNAPSHOT_CHUNK: SnapshotChunkReceived,
    FrameType.SNAPSHOT_TAIL: SnapshotTailReceived,
    FrameType.RING_UPDATE: RingUpdateReceived,
    FrameType.RING_CHUNK: RingChunkReceived,
}


def name(case: object) -> str:
    return type(case).__name__


@pytest.mark.parametrize(("message", "event"), MEANT, ids=name)
def test_a_message_becomes_its_event(message: Message, event: Event | None) -> None:
    frame = pack_message(message)
    assert event_of(PEER, FrameType(frame[PREFIX.size - 1]), frame[PREFIX.size :]) == event


@pytest.mark.parametrize("frame_type", BODIES)
def test_bodies_without_a_map_pass_unchecked(frame_type: FrameType) -> None:
    assert event_of(PEER, frame_type, b"anything") == BODIES[frame_type](PEER, b"anything")


def test_a_probe_is_not_the_replicas_business() -> None:
    assert event_of(PEER, FrameType.PROBE, b"anything") is None
    assert event_of(PEER, FrameType.PEERS, b"anything") is None


def test_no_frame_type_that_a_linked_peer_may_send_is_left_out() -> None:
    seen = {FrameType(pack_message(message)[PREFIX.size - 1]) for message, _ in MEANT}
    assert seen | BODIES.keys() == {*link_limits(1000), FrameType.REJECT} - {FrameType.PROBE, FrameType.PEERS}


@pytest.mark.parametrize(
    "frame_type", set(link_limits(1000)) - BODIES.keys() - {FrameType.PROBE, FrameType.PEERS}
)
def test_a_body_that_is_not_what_its_type_says_is_refused(frame_type: FrameType) -> None:
    with pytest.raises(PeerError):
        event_of(PEER, frame_type, b"\x81\xa1x\x01")


def test_a_table_that_is_none_is_refused() -> None:
    status = Status(
        frontier=bytes(63),
        view=4,
        founding=8,
        ready=True,
        confirmed=b"",
        unwanted=b"",
        loop_lag_ms=0,
        ring=b"",
    )
    with pytest.raises(PeerError):
        event_of(PEER, FrameType.STATUS, pack_message(status)[PREFIX.size :])
