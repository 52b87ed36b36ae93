"""Events and effects in a few words, for the trace of a run."""

from __future__ import annotations

from p2psgd.core.effects import (
    Alert,
    Deliver,
    Drop,
    LogEvent,
    Persist,
    ReportDrained,
    SaveVotes,
    Send,
    SendFloats,
    Shutdown,
    WriteCheckpoint,
)
from p2psgd.core.events import (
    FrameReceived,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    PeerMessage,
    PeerStatus,
    RingChunk,
    RingUpdate,
    SnapshotChunk,
    SnapshotStart,
    SnapshotTail,
    UpdateBody,
)
from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import (
    Fetch,
    FrontierRow,
    Message,
    RingBegin,
    RingBucket,
    Status,
    Trimmed,
    parse_frontier,
    parse_message,
)
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade
from p2psgd.wire.update import OwnUpdateMade
from tests.sim.ring.trace import (
    describe_begin,
    describe_bucket,
    describe_frame,
    describe_round_message,
    describe_share,
    describe_state,
)


def describe(what: object) -> str:  # noqa: PLR0911, PLR0912 (one line for each kind of thing)
    """One line, the same for the same thing in every process."""
    match what:
        case OwnUpdateMade():
            return f"makes an update of {len(what.words)} weights, step {what.magnitude}"
        case FrameReceived():
            return f"receives from {_name(what.peer)} {_heard(what.message)}"
        case ContributionMade() | BucketContributed():
            return describe_share(what)
        case LinkOpened() | LinkClosed() | LinkDrained() | ReportDrained():
            return f"{type(what).__name__} {_name(what.peer)}"
        case Send():
            return f"to {_name(what.peer)}: {_frame(what.frame)}"
        case SendFloats():
            return f"to {_name(what.peer)}: {_frame(what.head)}, {what.numbers.nbytes} bytes"
        case Deliver():
            return "to the trainer: the update"
        case Drop():
            return f"drop {_name(what.peer)}: {what.code.label}: {what.details}"
        case SaveVotes():
            return f"SaveVotes {what.revision}: {what.votes}"
        case WriteCheckpoint():
            return f"WriteCheckpoint {_table(what.rows)} tail {len(what.tail)}"
        case Persist():
            return "Record"
        case LogEvent():
            return f"Note {what.kind}: {what.words}"
        case Alert() | Shutdown():
            return f"{type(what).__name__}: {what.words}"
        case str():
            return what
        case _:
            return repr(what)


def _heard(message: PeerMessage) -> str:
    match message:
        case UpdateBody():
            return _update(bytes(message.body))
        case PeerStatus():
            rows = [(row.node, row.incarnation, row.sequence) for row in message.rows.values()]
            ready = "ready" if message.ready else "not ready"
            return f"STATUS view {message.view} {ready} {_rows(rows)}{describe_state(message.ring)}"
        case RingUpdate() | RingBucket() | RingChunk():
            return describe_round_message(message)
        case Fetch():
            return f"FETCH of {message.node}.{message.incarnation} {message.first} to {message.last}"
        case Trimmed():
            return f"TRIMMED of {message.node}.{message.incarnation} up to {message.trimmed_to}"
        case SnapshotStart():
            return f"SNAPSHOT_META {_table(message.rows)}"
        case SnapshotChunk() | SnapshotTail():
            return type(message).__name__
        case _:
            return repr(message)


def _name(origin: Origin) -> str:
    return f"{origin.node}.{origin.incarnation}"


def _table(rows: list[FrontierRow]) -> str:
    return _rows([(row.node, row.incarnation, row.sequence) for row in rows])


def _rows(rows: list[tuple[int, int, int]]) -> str:
    return "{" + ", ".join(f"{node}.{life}: {sequence}" for node, life, sequence in rows) + "}"


def _update(body: bytes) -> str:
    if len(body) < 24:
        return f"a broken update of {len(body)} bytes"
    node, incarnation, sequence = (int.from_bytes(body[at : at + 8], "little") for at in (0, 8, 16))
    return f"update {sequence} of {node}.{incarnation}, {len(body)} bytes"


def _frame(frame: bytes) -> str:
    frame_type, body = FrameType(frame[4]), frame[5:]
    match frame_type:
        case (
            FrameType.SNAPSHOT_COVER
            | FrameType.SNAPSHOT_CHUNK
            | FrameType.SNAPSHOT_TAIL
            | FrameType.CONTRIBUTION
            | FrameType.RULE_STATE
            | FrameType.EVALUATION_NUMBERS
        ):
            return frame_type.name
        case FrameType.UPDATE:
            return _update(body)
        case FrameType.RING_UPDATE | FrameType.RING_CHUNK:
            return describe_frame(frame_type, body)
        case _:
            pass
    return _message(parse_message(frame_type, body))


def _message(message: Message) -> str:
    match message:
        case Status() as status:
            rows = [(row.node, row.incarnation, row.sequence) for row in parse_frontier(status.frontier)]
            return f"STATUS {_rows(rows)}{describe_state(status.ring)}"
        case RingBegin() as begin:
            return describe_begin(begin)
        case RingBucket() as bucket:
            return describe_bucket(bucket)
        case Fetch() as need:
            return f"FETCH {need.node}.{need.incarnation} {need.first} to {need.last}"
        case Trimmed() as gap:
            return f"TRIMMED {gap.node}.{gap.incarnation} up to {gap.trimmed_to}"
        case other:
            return repr(other)
