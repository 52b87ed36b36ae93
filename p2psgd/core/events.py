"""Events: what can happen to a replica, and what the frames of its peers mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.wire.evaluation import EvaluationAsked
from p2psgd.wire.frames import Body, FrameType
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
    Message,
    Prepare,
    Promise,
    RingBegin,
    RingBucket,
    SnapshotEnd,
    SnapshotMeta,
    SnapshotRequest,
    Status,
    Trimmed,
    ViewNews,
    parse_confirmed,
    parse_frontier,
    parse_loss,
    parse_message,
    parse_nodes,
)
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade, RingState, parse_ring_state
from p2psgd.wire.update import OwnUpdateMade

# ----------------------------------------------------------------------------
# What a node brings back from its disk when it starts again.


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint: coordinates int32 (P,) at the frontier `rows` with `digest`, and the UPDATE frames of its
    `tail`; `own` are frames of this node's own updates since then, in order. `rounds`: how many of a sparse
    ring were complete then; `covers`: the packed Covers of owners; `rule_states`: of this node's rule, as
    bodies of RULE_STATE frames.
    """

    coordinates: NDArray[np.int32]
    rows: list[FrontierRow]
    digest: int
    tail: list[bytes]
    own: list[bytes]
    rounds: int = 0
    covers: list[bytes] = field(default_factory=list)
    rule_states: list[bytes] = field(default_factory=list)


# ----------------------------------------------------------------------------
# What the frame of a linked peer means to the replica: a message of the wire; if that has tables, what they
# hold; or a body that the replica checks by what it knows.


@dataclass(frozen=True, slots=True)
class UpdateBody:
    """The body of an UPDATE frame, unchecked."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class ContributionBody:
    """The body of a CONTRIBUTION frame, unchecked."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class RuleStateBody:
    """The body of a RULE_STATE frame, unchecked."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class EvaluationNumbers:
    """The body of an EVALUATION_NUMBERS frame, unchecked."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """STATUS: what a peer has applied, and which nodes it receives from; not `whole`: what has changed."""

    rows: Mapping[Origin, FrontierRow]
    view: int
    cluster_id: int
    ready: bool
    confirmed: list[ConfirmedRow]
    evict_requests: list[int]
    loss: float | None
    ring: RingState | None = None  # in ring mode
    whole: bool = True
    steps: int = 0  # in mode `owners`


@dataclass(frozen=True, slots=True)
class SnapshotStart:
    """SNAPSHOT_META: the frontier and the digest of the snapshot that follows."""

    rows: list[FrontierRow]
    digest: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """The next coordinates, little-endian int32."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class SnapshotCover:
    """SNAPSHOT_COVER: what the updates of one owner cover, unchecked."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class SnapshotTail:
    """The body of an UPDATE frame from the sender's log, unchecked."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class RingUpdate:
    """The body of a RING_UPDATE frame, unchecked."""

    body: bytes | bytearray


@dataclass(frozen=True, slots=True)
class RingChunk:
    """The body of a RING_CHUNK frame, unchecked; a memoryview is good only while this is handled."""

    body: Body


Vote = Prepare | Promise | Accept | Accepted | ViewNews
RoundMessage = RingUpdate | RingBucket | RingChunk
RingMessage = RingBegin | RoundMessage
EvaluationMessage = EvaluationReport | EvaluationLease | EvaluationTable | EvaluationResult | EvaluationFetch
PeerMessage = (
    UpdateBody
    | ContributionBody
    | RuleStateBody
    | PeerStatus
    | Fetch
    | Trimmed
    | Vote
    | Goodbye
    | SnapshotRequest
    | SnapshotStart
    | SnapshotCover
    | SnapshotChunk
    | SnapshotTail
    | SnapshotEnd
    | RingMessage
    | EvaluationMessage
    | EvaluationNumbers
)


def parse_peer_message(frame_type: FrameType, body: Body) -> PeerMessage | None:
    """Return what a linked peer's frame means; None for what the replica has nothing to do with: a REJECT,
    which says why the link ends, and PEERS. PeerError if the body is not what its type says.
    """
    if frame_type is FrameType.RING_CHUNK:
        return RingChunk(body)
    assert not isinstance(body, memoryview), f"a {frame_type.name} is kept: its body must be its own"
    if frame_type in _BODIES:
        return _BODIES[frame_type](body)
    if frame_type is FrameType.PEERS:
        return None
    return _open_tables(parse_message(frame_type, body))


_BODIES: Final[Mapping[FrameType, Callable[[bytes | bytearray], PeerMessage]]] = {
    FrameType.UPDATE: UpdateBody,
    FrameType.CONTRIBUTION: ContributionBody,
    FrameType.RULE_STATE: RuleStateBody,
    FrameType.SNAPSHOT_COVER: SnapshotCover,
    FrameType.SNAPSHOT_CHUNK: SnapshotChunk,
    FrameType.SNAPSHOT_TAIL: SnapshotTail,
    FrameType.RING_UPDATE: RingUpdate,
    FrameType.EVALUATION_NUMBERS: EvaluationNumbers,
}


def _open_tables(message: Message) -> PeerMessage | None:
    match message:
        case Status() as status:
            return PeerStatus(
                {Origin(row.node, row.incarnation): row for row in parse_frontier(status.frontier)},
                status.view,
                status.cluster_id,
                status.ready,
                parse_confirmed(status.confirmed),
                parse_nodes(status.evict_requests),
                parse_loss(status.loss),
                parse_ring_state(status.ring) if status.ring else None,
                status.whole,
                status.steps,
            )
        case SnapshotMeta() as meta:
            return SnapshotStart(parse_frontier(meta.frontier), meta.digest)
        case (
            Fetch()
            | Trimmed()
            | Goodbye()
            | Prepare()
            | Promise()
            | RingBegin()
            | Accept()
            | Accepted()
            | ViewNews()
            | SnapshotRequest()
            | SnapshotEnd()
            | RingBucket()
            | EvaluationReport()
            | EvaluationLease()
            | EvaluationTable()
            | EvaluationResult()
            | EvaluationFetch()
        ):
            return message
        case _:
            return None


# ----------------------------------------------------------------------------
# What can happen to a replica: past-tense facts, the only input of `Replica.handle`.


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
    """A link has drained: the peer may be sent more."""

    peer: Origin


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A linked peer sent a frame, which means `message`."""

    peer: Origin
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class TrainerChanged:
    """The node has, or has not, a trainer that takes part in rounds from now on, or in evaluations. A
    contribution that it has not given whole by then is void.
    """

    active: bool


@dataclass(frozen=True, slots=True)
class VotesSaved:
    """SaveVotes of this revision has reached the disk."""

    revision: int


@dataclass(frozen=True, slots=True)
class RemovalRequested:
    """A person wants a node out of the view; `forbid`: never to be admitted again."""

    node: int
    forbid: bool


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """A checkpoint is due: take a consistent copy of the node's state for the disk."""


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The last copy ordered by WriteCheckpoint is on disk; False: it could not be written."""

    written: bool


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """The result of ReadCheckpoint: its coordinates are unshared, and `own` is empty. None: nothing whole."""

    found: Restored | None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The turn of the loop that Yield asked for."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened, but `now` has moved: several times a second. `loss`: that of the
    node's trainer, for the next STATUS.
    """

    loss: float | None = None


@dataclass(frozen=True, slots=True)
class BootstrapExpectChanged:
    """The list of peers has changed: now `nodes`, this one included, are to found the run together."""

    nodes: int


@dataclass(frozen=True, slots=True)
class ScrubRequested:
    """A person wants the digest compared with the weights in memory now."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """This node will stop, and its trainer makes no more: others get what is theirs in mode `owners`."""


@dataclass(frozen=True, slots=True)
class NodeStopping:
    """This node is about to close its links for good; `why`, in its own log, for people."""

    why: str = ""


LinkEvent = LinkDrained | FrameReceived
TrainerEvent = OwnUpdateMade | TrainerChanged | ContributionMade | BucketContributed | EvaluationAsked
DiskEvent = CheckpointDue | CheckpointWritten | CheckpointRead | VotesSaved
OperatorEvent = RemovalRequested | BootstrapExpectChanged | ScrubRequested | HandOver | NodeStopping
Event = LinkOpened | LinkClosed | LinkEvent | TrainerEvent | DiskEvent | OperatorEvent | Resumed | TimePassed
