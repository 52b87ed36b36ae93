"""Every frame type that a linked peer may send becomes the event that it means."""

from __future__ import annotations

import pytest

from p2psgd.core.events import (
    ContributionBody,
    EvaluationMessage,
    EvaluationNumbers,
    PeerMessage,
    PeerStatus,
    RingChunk,
    RingUpdate,
    RuleStateBody,
    SnapshotChunk,
    SnapshotCover,
    SnapshotStart,
    SnapshotTail,
    UpdateBody,
    parse_peer_message,
)
from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import PREFIX, FrameType, link_limits
from p2psgd.wire.messages import (
    Accept,
    Accepted,
    ConfirmedRow,
    EvaluationFetch,
    EvaluationLease,
    EvaluationReport,
    EvaluationResult,
    EvaluationTable,
    Fetch,
    FrontierRow,
    Goodbye,
    MemberRow,
    Message,
    Prepare,
    Promise,
    Reject,
    RingBegin,
    RingBucket,
    SnapshotEnd,
    SnapshotMeta,
    SnapshotRequest,
    Status,
    Trimmed,
    ViewNews,
    pack_confirmed,
    pack_frontier,
    pack_loss,
    pack_members,
    pack_message,
    pack_nodes,
)
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import RingState, pack_ring_state
from tests.core.cluster import by_origin

PEER, OTHER = Origin(2, 5), Origin(3, 6)
ROWS = [FrontierRow(*PEER, 9, 1, trimmed_to=2, durable=3, least=4, steps=5)]
CONFIRMED = [ConfirmedRow(*OTHER, 4)]
VOTES: list[Prepare | Promise | Accept | Accepted | ViewNews] = [
    Prepare(view=4, round=1, node=2),
    Promise(
        view=4, round=1, node=2, accepted_round=0, accepted_node=0, members=b"", forbidden=b"", cluster_id=0
    ),
    Accept(view=4, round=1, node=2, members=pack_members([MemberRow(2, 5, 1)]), forbidden=b"", cluster_id=8),
    Accepted(view=4, round=1, node=2),
    ViewNews(view=4, members=pack_members([MemberRow(2, 5, 1)]), forbidden=b"", cluster_id=8),
]
STANDING = RingState(generation=7, round=12, running=True, active=False, contributed=True)
EVALUATION: list[EvaluationMessage] = [
    EvaluationReport(
        evaluation=3,
        attempt=1,
        digest=7,
        portions=9,
        limits=bytes(4),
        exponents=bytes(4),
        added=bytes(2),
        held=b"\x01\x00",
        checksums=bytes(8),
        failed=2,
        words="no such file",
        active=True,
    ),
    EvaluationLease(
        evaluation=3,
        attempt=1,
        limits=bytes(4),
        granted=bytes(2),
        decided=bytes(2),
        leases=b"\x03\x00",
        ahead=True,
        error="",
    ),
    EvaluationTable(
        evaluation=3,
        attempt=1,
        number=1,
        leader=2,
        holders=bytes(16),
        assignment=bytes(18),
        exponents=bytes(4),
    ),
    EvaluationResult(
        evaluation=3, first=1, last=3, digest=7, portions=9, limits=bytes(4), exponents=bytes(4)
    ),
    EvaluationFetch(kind=1, evaluation=3, attempt=1, table=1, leader=2, offset=0, count=9),
]
BUCKET = RingBucket(
    view=4,
    generation=7,
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
MEANT: list[tuple[Message, PeerMessage | None]] = [
    (
        Status(
            frontier=pack_frontier(ROWS),
            view=4,
            cluster_id=8,
            ready=True,
            confirmed=pack_confirmed(CONFIRMED),
            whole=True,
            evict_requests=pack_nodes([5]),
            loss=pack_loss(3.0),
            steps=0,
            ring=b"",
        ),
        PeerStatus(by_origin(ROWS), 4, 8, True, CONFIRMED, [5], 3.0),
    ),
    (
        Status(
            frontier=b"",
            view=4,
            cluster_id=8,
            ready=True,
            confirmed=b"",
            whole=True,
            evict_requests=b"",
            loss=0,
            steps=0,
            ring=pack_ring_state(STANDING),
        ),
        PeerStatus({}, 4, 8, True, [], [], 0, STANDING),
    ),
    (Fetch(node=3, incarnation=6, first=2, last=7), Fetch(node=3, incarnation=6, first=2, last=7)),
    (Trimmed(node=3, incarnation=6, trimmed_to=7), Trimmed(node=3, incarnation=6, trimmed_to=7)),
    (Goodbye(sequence=9), Goodbye(sequence=9)),
    (Reject(node=2, code=999, details="no room", incarnation=0), None),
    *((vote, vote) for vote in VOTES),
    (SnapshotRequest(view=4), SnapshotRequest(view=4)),
    (SnapshotMeta(frontier=pack_frontier(ROWS), digest=11), SnapshotStart(ROWS, 11)),
    (SnapshotEnd(reason="busy", tail=0), SnapshotEnd(reason="busy", tail=0)),
    (
        RingBegin(view=4, generation=7, round=12, digest=11),
        RingBegin(view=4, generation=7, round=12, digest=11),
    ),
    (BUCKET, BUCKET),
    *((message, message) for message in EVALUATION),
]

BODIES = {
    FrameType.UPDATE: UpdateBody,
    FrameType.CONTRIBUTION: ContributionBody,
    FrameType.RULE_STATE: RuleStateBody,
    FrameType.SNAPSHOT_COVER: SnapshotCover,
    FrameType.SNAPSHOT_CHUNK: SnapshotChunk,
    FrameType.SNAPSHOT_TAIL: SnapshotTail,
    FrameType.RING_UPDATE: RingUpdate,
    FrameType.RING_CHUNK: RingChunk,
    FrameType.EVALUATION_NUMBERS: EvaluationNumbers,
}


def name(case: object) -> str:
    return type(case).__name__


@pytest.mark.parametrize(("message", "meant"), MEANT, ids=name)
def test_a_frame_means_what_its_message_says(message: Message, meant: PeerMessage | None) -> None:
    frame = pack_message(message)
    assert parse_peer_message(FrameType(frame[PREFIX.size - 1]), frame[PREFIX.size :]) == meant


@pytest.mark.parametrize("frame_type", BODIES)
def test_bodies_without_a_map_pass_unchecked(frame_type: FrameType) -> None:
    assert parse_peer_message(frame_type, b"anything") == BODIES[frame_type](b"anything")


def test_addresses_are_not_the_replicas_business() -> None:
    assert parse_peer_message(FrameType.PEERS, b"anything") is None


def test_no_frame_type_that_a_linked_peer_may_send_is_left_out() -> None:
    seen = {FrameType(pack_message(message)[PREFIX.size - 1]) for message, _ in MEANT}
    assert seen | BODIES.keys() == {*link_limits(1000), FrameType.REJECT} - {FrameType.PEERS}


REFUSED = set(link_limits(1000)) - BODIES.keys() - {FrameType.PEERS, FrameType.REJECT}


@pytest.mark.parametrize("frame_type", REFUSED)
def test_a_body_that_is_not_what_its_type_says_is_refused(frame_type: FrameType) -> None:
    with pytest.raises(PeerError):
        parse_peer_message(frame_type, b"\x81\xa1x\x01")


def test_a_reject_is_not_the_replicas_business_whatever_its_keys() -> None:
    assert parse_peer_message(FrameType.REJECT, b"\x81\xa1x\x01") is None


def test_a_table_that_is_none_is_refused() -> None:
    status = Status(
        frontier=bytes(63),
        view=4,
        cluster_id=8,
        ready=True,
        confirmed=b"",
        whole=True,
        evict_requests=b"",
        loss=0,
        steps=0,
        ring=b"",
    )
    with pytest.raises(PeerError):
        parse_peer_message(FrameType.STATUS, pack_message(status)[PREFIX.size :])
