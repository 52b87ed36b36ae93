"""The status of one node: the one model from which JSON, text, `top`, the page and the metrics are made.

The daemon makes a `NodeStatus` (collect.py) and sends what it has set; a reader gets the same model
from `read_status`. Keys are for machines and stay. `waits`, `error` and the like are sentences for people:
what a program must know stands beside them as a figure or as one of the enums.

Lengths are limited, since a status must fit into one datagram: `..._total` counts what is not listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from p2psgd import __version__
from p2psgd.base import formatting
from p2psgd.base.errors import ExitCode, UsageError

ROWS_MAX: Final = 128  # peers, members and origins listed one by one
DENSE_BITS: Final = 32  # of one weight of an uncompressed gradient: float32
NEWS_S: Final = 1.0  # rounds of a ring take less as a rule: a shorter wait for one is no news


class NodeState(StrEnum):
    """The state of a node. The first and the last are those of a node as others see it."""

    STARTING = "starting"  # it has not answered yet
    WAITING = "waiting for a trainer"
    JOINING = "joining"  # its trainer waits until the replica is complete
    TRAINING = "training"
    RING_WAITING = "waiting for the round"  # its trainer has contributed, and the round has not all others
    SERVING = "serving"  # its trainer has finished
    DRAINING = "draining"  # it stops, once its updates are acknowledged
    LOST = "lost"  # its daemon has ended or is given up; `waits` says why


class PeerState(StrEnum):
    """The link to a peer."""

    CONNECTED = "connected"
    SUSPECT = "suspect"  # connected, and silent for longer than the failure timeout
    LOST = "lost"
    DIALLING = "dialling"  # never linked yet
    STOPPED = "stopped"  # it has said that it ends


class Verdict(StrEnum):
    """The result of a comparison of two replicas; the one that needs a person most comes first."""

    DIFFERS = "differs"
    UNKNOWN = "unknown"  # what it has is not known: it has not told yet, or is not linked
    AGREES = "agrees"  # equal where both have applied the same; one is ahead somewhere
    IDENTICAL = "identical"  # the same frontier, the same digests


def _finite(value: object) -> float | None:
    """Return a number that a trainer has reported; None for anything that cannot be shown or added."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


Figure = Annotated[float | None, BeforeValidator(_finite)]
Tenths = Annotated[float, PlainSerializer(_round)]
TenthsOrNone = Annotated[float | None, PlainSerializer(_round)]


class Part(BaseModel):
    """A part of a status. Keys of a later version are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


PartT = TypeVar("PartT", bound=Part)


class BitCounts(Part):
    """The bits of updates by what they are for; they add up to all bits of the frames."""

    remainder: int = 0
    quotient: int = 0
    sign: int = 0
    header: int = Field(0, description="frames, update headers and block headers")
    dense: int = Field(0, description="payloads that say something of every weight")

    @property
    def total(self) -> int:
        """Return the sum of all bits."""
        return self.remainder + self.quotient + self.sign + self.header + self.dense

    def by_name(self) -> dict[str, int]:
        """Return the bits by their name."""
        return {name: getattr(self, name) for name in BITS}


BITS: Final = tuple(BitCounts.model_fields)


class UpdateSums(Part):
    """The sums over some updates."""

    updates: int = 0
    steps: int = 0
    indices: int = Field(0, description="weight indices in these updates")
    dense_updates: int = 0
    blocks: int = 0
    sign_coded_blocks: int = 0
    density: float | None = Field(None, description="fraction of the weights that a mini-batch changes")
    bits: BitCounts = BitCounts()
    bits_per_index: float | None = Field(None, description="headers included")


class TensorSums(Part):
    """The sums of one tensor in these updates."""

    name: str = "?"
    weights: int = 0
    indices: int = 0
    threshold: int = Field(0, description="quanta, in the last update that changed the tensor; 0: none did")
    share: float | None = Field(None, description="fraction of all indices")
    density: float | None = None
    recent_density: float | None = None


class Compression(Part):
    """The compression of a node's own updates."""

    total: UpdateSums = UpdateSums()
    recent: UpdateSums = Field(UpdateSums(), description="of the last 100 to 200 mini-batches")
    tensors_total: int = 0
    tensors: Sequence[TensorSums] = Field(
        (), description="the largest, in the run's order; only if asked for"
    )


class RunStatus(Part):
    """The facts of a run on which all its nodes agree."""

    fingerprint: str = ""
    mode: str = ""
    weights: int = 0
    quantum_log2: int = 0
    tensors: int = 0
    shards: int = Field(0, description="parts that the data is listed in; 0: none")
    label: str = ""
    two_nodes: str = ""


class TrainerStatus(Part):
    """The node's trainer: what the daemon knows of it, and what it has reported."""

    attached: bool = False
    pid: int | None = None
    finished: bool = False
    steps: int = Field(0, description="over all incarnations of the node")
    steps_per_s: float | None = Field(None, description="as the daemon counts them")
    step: int = Field(0, description="of the training that the script has described")
    of: int = Field(0, description="steps of that training; 0: it has not said")
    batch: int = Field(0, description="samples of a step; 0: not known")
    samples: int = Field(0, description="of this process")
    samples_per_s: Figure = Field(None, description="as reported, or steps_per_s x batch")
    loss: Figure = None
    test_accuracy: Figure = Field(None, description="fraction")
    epoch: Figure = None
    iteration: int = Field(0, description="of a full-batch method")
    gradient_norm: Figure = Field(None, description="Euclidean, there")
    step_length: Figure = Field(None, description="of its last step, in units of the direction")
    waits: str = ""
    timed_steps: int = Field(0, description="of this process; the times below are those of all of them")
    computing_s: float = 0.0
    waiting_s: float = Field(0.0, description="for others")
    adding_s: float = 0.0
    sending_s: float = 0.0
    daemon_adding_s: float = 0.0
    daemon_sending_s: float = 0.0
    reloads: int = Field(0, description="times that it took the weights as a whole")
    copies_mended: int = Field(0, description="times that its copy of the weights was wrong")
    refused_trainers: int = 0
    refused_requests: int = 0
    supervised: bool = Field(False, description="the daemon starts it")
    running: bool = Field(False, description="the command that the daemon has started has not ended yet")
    restarts: int = 0
    crash: str = Field("", description="how the last one ended, if it crashed")
    restart_in_s: float = 0.0


class PaceStatus(Part):
    """The trainers of several nodes together: the steps of other nodes come with their updates."""

    nodes: int = Field(0, description="that have made steps in the last seconds, this one included")
    steps_per_s: float = 0.0


class UpdatesStatus(Part):
    """The node's updates since its daemon was started."""

    sent: int = Field(0, description="own updates; each goes to every peer")
    applied: int = Field(0, description="updates of peers")
    duplicates: int = 0
    indices_sent: int = 0
    bytes: int = Field(0, description="of own updates, as sent to one peer")


class OriginStatus(Part):
    """A row of the frontier, for one origin."""

    node: str = "?"
    id: str = ""
    incarnation: int = 0
    sequence: int = Field(0, description="last update applied without a gap")
    digest: str = ""


class MemberStatus(Part):
    """A row for one member of the view, this node among them."""

    node: str = "?"
    id: str = ""
    incarnation: int = 0
    own: bool = False
    linked: bool = False
    ready: bool = False
    heard_s: TenthsOrNone = Field(None, description="since any news of it, also through others; null: never")
    since: int | None = Field(None, description="the view that took this incarnation in")
    lag: int | None = Field(None, description="own updates that it is not known to have applied")


class ViewStatus(Part):
    """The latest view that was decided; number 0: none yet."""

    number: int = 0
    cluster_id: str = ""
    member: bool = False
    members: Sequence[MemberStatus] = ()
    members_total: int = 0
    forbidden: Sequence[str] = Field((), description="ids of nodes that were removed for good")
    waits: str = Field("", description="what the next view waits for; empty: there is nothing to decide")


class HolderStatus(Part):
    """A member that holds back the log."""

    node: str = "?"
    id: str = ""
    bytes: int = Field(0, description="that it has not acknowledged")


class LogStatus(Part):
    """The updates kept for peers that lack them."""

    updates: int = 0
    bytes: int = Field(0, description="in memory")
    budget_bytes: int = 0
    stored_bytes: int = Field(0, description="on disk")
    stored_budget_bytes: int = 0
    pressure: float | None = Field(None, description="fraction of what it may hold; see core/retention.py")
    holders: Sequence[HolderStatus] = Field((), description="who holds back most of it")


class CheckpointStatus(Part):
    """The last checkpoint on disk."""

    number: int = Field(0, description="0: none in this incarnation")
    age_s: TenthsOrNone = None
    bytes: int = 0
    failures: int = 0
    trouble: str = Field("", description="why the last attempt failed, or what the disk has been at for long")


class ScrubStatus(Part):
    """The digest recomputed from the weights as they lie in memory."""

    count: int = 0
    quarantines: int = Field(0, description="scrubs that found a difference where the one before had not")
    running: bool = False
    clean: bool | None = Field(None, description="what the last one found; null: none has finished")
    age_s: TenthsOrNone = None


class SnapshotStatus(Part):
    """A snapshot on its way, to a peer (`giving`) or from one."""

    node: str = "?"
    id: str = ""
    giving: bool = False
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: Tenths = 0.0


class StallStatus(Part):
    """The stall of the trainer: why it is held up, and for how long it has been."""

    words: str = "?"
    since_s: Tenths = 0.0


class SlowLinkStatus(Part):
    """A peer that takes less than all nodes make, in bytes of updates a second; see node/backpressure.py."""

    node: str = "?"
    id: str = ""
    needed: Tenths = 0.0
    available: Tenths = 0.0


class CountersStatus(Part):
    """The counts of what should be rare, since the daemon was started; see core/metrics.py."""

    snapshots_given: int = 0
    snapshots_taken: int = 0
    evictions_seen: int = 0
    reapplied: int = 0
    lost_updates: int = 0
    scrubs: int = 0
    quarantines: int = 0
    mendings: int = 0
    held_back: int = 0
    lost_durability: int = 0


class RingStatus(Part):
    """The rounds of a run: those of a ring, or of owners, which have neither order nor generations."""

    round: int = Field(0, description="the last complete one")
    payload: str = Field("?", description="of the ring; or owners")
    order: Sequence[str] = Field((), description="members of the last generation, around the ring")
    nodes: int = 0
    generation: int = Field(0, description="of this view; 0: none yet")
    running: bool = False
    active: bool = Field(False, description="this node has a trainer that takes part")
    contributed: bool = Field(False, description="it has contributed to the round under way")
    waiting_for: str = ""
    since_s: Tenths = Field(0.0, description="since the last round, or since the generation began or ended")

    @property
    def wait(self) -> str:
        """Return which nodes the ring waits for and since when; empty while the wait is short."""
        return self.waiting_for if self.since_s >= NEWS_S else ""

    @property
    def stands_still(self) -> bool:
        """Return whether this node's trainer waits for others, and not they for it."""
        return bool(self.active and self.wait and (self.contributed or not self.running))


class OwnersStatus(Part):
    """The range that the node owns and its contributions, of a run in mode `owners`."""

    rule: str = "?"
    state_bytes: int = Field(0, description="what the rule keeps for these weights")
    kept_bytes: int = Field(0, description="and what this node keeps of other owners' rules")
    first: int = Field(0, description="the first weight that it owns")
    end: int = Field(0, description="and the one after the last")
    owners: int = 0
    waiting: int = Field(0, description="contributions that no update of their owner covers")
    waiting_bytes: int = 0
    oldest_s: Tenths = Field(0.0, description="since the oldest of them was made")
    slowest: str = Field("", description="the owner that has it")
    lost: int = Field(0, description="contributions that another owner got and that may count twice")


class EvaluationStatus(Part):
    """The evaluations of a run in mode `closure`; portions are known at the leader alone."""

    number: int = Field(0, description="that this node's trainer asks for; 0: it has none")
    waits: bool = Field(False, description="it has not got the result")
    first: int = Field(1, description="the first evaluation whose result this node holds")
    last: int = Field(0, description="and the last one")
    leader: str = Field("", description="the node that deals portions")
    portions: int = Field(0, description="of the present evaluation; 0: this node does not lead")
    done: int = Field(0, description="in a member's sum")
    leased: int = Field(0, description="that members compute")
    again: int = Field(0, description="portions leased a second time, since the node was started")
    slowest: str = Field("", description="the member that has had a portion for longest")
    slowest_s: Tenths = 0.0
    fewest: str = Field("", description="the member with the fewest portions done; empty: it is alone")
    fewest_done: int = 0


class PeerStatus(Part):
    """A peer: a node that was linked, one that the list names, or a member that is not linked."""

    node: str = "?"
    id: str | None = None
    address: str = ""
    state: PeerState = PeerState.DIALLING
    lag: int | None = Field(None, description="own updates that it has not acknowledged")
    loss: Figure = Field(None, description="of its trainer, by its last STATUS")
    steps_per_s: float | None = Field(None, description="by its updates; null: not known")
    since_s: TenthsOrNone = Field(None, description="for how long it has been in this state")
    bytes_sent: int = 0
    bytes_received: int = 0
    round_trip_ms: float | None = None
    error: str = ""
    through: str = Field("", description="who passes on its updates while it is not linked")

    @property
    def key(self) -> str:
        """Return the peer's key over several statuses."""
        return self.id or self.address


class ForeignNodeStatus(Part):
    """A node of another run that was refused."""

    node: str = "?"
    id: str = ""
    since_s: Tenths = 0.0
    words: str = "?"


class TrafficStatus(Part):
    """The bytes to and from all peers since the daemon was started."""

    sent: int = 0
    received: int = 0


class EventsStatus(Part):
    """The node's event log."""

    count: int = Field(0, description="of all incarnations")
    held_back: int = Field(0, description="counted and not kept, as peers cause them at will")
    failures: int = Field(0, description="not in the file")
    trouble: str = ""


class HttpStatus(Part):
    """The HTTP server of the node: its address, and how often it has answered."""

    address: str = ""
    answered: Mapping[str, int] = Field({}, description="answers by status code")
    cut: Mapping[str, int] = Field({}, description="connections without an answer, by reason")


class TlsStatus(Part):
    """The node's certificate."""

    run: str = ""
    expires: str = ""
    expires_s: int = Field(0, description="until then; below 0: it has")
    trouble: str = ""


class EventStatus(Part):
    """An event of the node, with its figures beside these fields."""

    model_config = ConfigDict(frozen=True, extra="allow")

    time: str
    count: int
    kind: str
    words: str


class NodeStatus(Part):
    """The status of one node. What is not set is not known yet: most of it before the run is."""

    node: str
    id: str = ""
    incarnation: int = 0
    pid: int = 0
    version: str = ""
    uptime_s: TenthsOrNone = None
    state: NodeState = NodeState.STARTING
    waits: str = Field("", description="what the node waits for, and since when; empty: nothing")
    listen: str = ""
    plaintext: bool = False
    insecure_plaintext: bool = Field(False, description="as --insecure-plaintext has it")
    tls: TlsStatus | None = None
    http: HttpStatus | None = None
    run: RunStatus | None = None
    digest: str | None = None
    coordinate_max: int | None = Field(
        None, description="largest absolute weight, in quanta; none in a dense ring"
    )
    origins_total: int = 0
    frontier: Sequence[OriginStatus] = ()
    updates: UpdatesStatus | None = None
    failure_timeout_s: float = 0.0
    ready: bool | None = Field(None, description="a member whose replica is complete")
    not_ready: str = ""
    view: ViewStatus | None = None
    log: LogStatus | None = None
    checkpoint: CheckpointStatus | None = None
    scrub: ScrubStatus | None = None
    snapshots: Sequence[SnapshotStatus] = ()
    stall: StallStatus | None = None
    slow_links: Sequence[SlowLinkStatus] = ()
    counters: CountersStatus | None = None
    ring: RingStatus | None = None
    owners: OwnersStatus | None = None
    evaluation: EvaluationStatus | None = None
    events: EventsStatus | None = None
    latest_events: Sequence[EventStatus] = Field((), description="oldest first; only over HTTP")
    lines: Sequence[tuple[str, str, str]] = Field(
        (), description="of `p2psgd status`: label, words and grade; only over HTTP"
    )
    compression_text: str = Field("", description="of `p2psgd status --compression`; only over HTTP")
    bytes: TrafficStatus | None = None
    loop_lag_ms: TenthsOrNone = None
    trainer: TrainerStatus = TrainerStatus()
    pace: PaceStatus | None = Field(None, description="of all nodes that train; null: of no other")
    peers: Sequence[PeerStatus] = ()
    peers_total: int = 0
    compression: Compression | None = None
    dropped: Mapping[str, int] = Field({}, description="frames, links and greetings ended, by reason")
    doctors: int = Field(0, description="visits of `p2psgd doctor`")
    strangers: Sequence[ForeignNodeStatus] = ()
    alarms: Sequence[str] = Field((), description="what a person should look at, oldest first")

    @property
    def dense(self) -> bool:
        """Return whether whole gradients go around: then there are no updates to count."""
        return self.ring is not None and self.ring.payload.startswith("dense")

    @property
    def finished(self) -> bool:
        """Return whether the node's trainer is done."""
        return self.trainer.finished and self.state in (NodeState.SERVING, NodeState.WAITING)

    @property
    def founded(self) -> bool:
        """Return whether a view is decided, so that the members are known."""
        return self.view is not None and self.view.number > 0

    @property
    def alone(self) -> bool:
        """Return whether the node is ready though no view is decided yet."""
        return bool(self.ready and self.view and not self.view.number)

    @property
    def bits_per_index(self) -> float | None:
        """Return the bits that one sent index took, sign, headers and frames included; None before
        the first.
        """
        return bits_per_index([self])

    @property
    def compression_ratio(self) -> float | None:
        """Return how many times smaller the updates were than float32 gradients of the same mini-batches."""
        return compression_ratio([self])


def bits_per_index(nodes: Sequence[NodeStatus]) -> float | None:
    """Return the bits that one sent index took in all these nodes' updates; None before the first."""
    updates = [node.updates for node in nodes if node.updates]
    indices = sum(each.indices_sent for each in updates)
    return 8 * sum(each.bytes for each in updates) / indices if indices else None


def compression_ratio(nodes: Sequence[NodeStatus]) -> float | None:
    """Return how many times smaller these nodes' updates were than their gradients as float32.

    Bytes are those to one peer, headers and frames included ([Strom 2015] table 3, there without entropy
    coding). None before the first.
    """
    weights = sum(node.run.weights * _steps_sent(node) for node in nodes if node.run)
    return dense_ratio(weights, sum(node.updates.bytes for node in nodes if node.updates))


def _steps_sent(node: NodeStatus) -> int:
    """Return the mini-batches of the updates that a node counts, which are those since its daemon began."""
    total = UpdateSums() if node.compression is None else node.compression.total
    return total.steps if total.updates else node.trainer.steps


def dense_ratio(weights: int, sent_bytes: int) -> float | None:
    """Return the size of the weights as float32 over `sent_bytes`; None before the first byte."""
    return DENSE_BITS * weights / (8 * sent_bytes) if sent_bytes > 0 else None


def read_status(fields: object) -> NodeStatus:
    """Return the status that a daemon has sent; UsageError if it does not fit this version."""
    return read_part(NodeStatus, fields, "status")


def read_part(model: type[PartT], fields: object, what: str) -> PartT:
    """Return an answer of a daemon; UsageError if it does not fit this version."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    version = fields.get("version") if isinstance(fields, Mapping) else None
    place = ".".join(map(str, first["loc"])) or what
    words = formatting.printable(f"{place}: {first['msg']}; it is version {version or 'unknown'}")
    raise UsageError(
        f"the daemon's {what} does not fit this p2psgd, {__version__} ({words:.200}): ask with its own",
        ExitCode.CONFIGURATION,
    )
