"""The replica: the one place where replication decides anything.

`handle(event, now)` takes what happened and returns what to do; it alone changes the weights, the frontier,
the log and the cursors. No sockets, no clock of its own, no randomness: the daemon and a simulator run the
same code. What it knows and does is in files of their own: state (weights, frontier, log), receive, send
(what peers are given, and which peer to ask), membership (agreed views), view_change (what they mean), acks,
readiness (READY), snapshot, scrub (and copies), quarantine, retention and eviction (trimming), checkpoint,
in ring mode ring, and in mode closure closure.

More than 700 lines, since it is the one list of what can happen, and of the part that each event goes to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, assert_never

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.acks import Acknowledgements
from p2psgd.core.checkpoint import Checkpoints
from p2psgd.core.closure.closure import Closure
from p2psgd.core.closure.sums import ClosureMemory, make_memory
from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Drop, Effect
from p2psgd.core.events import (
    BootstrapExpectChanged,
    CheckpointDue,
    CheckpointRead,
    CheckpointWritten,
    ContributionBody,
    DiskEvent,
    EvaluationNumbers,
    Event,
    FrameReceived,
    HandOver,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    NodeStopping,
    OperatorEvent,
    PeerMessage,
    PeerStatus,
    RemovalRequested,
    Restored,
    Resumed,
    RingChunk,
    RingUpdate,
    RuleStateBody,
    ScrubRequested,
    SnapshotChunk,
    SnapshotCover,
    SnapshotStart,
    SnapshotTail,
    TimePassed,
    TrainerChanged,
    TrainerEvent,
    UpdateBody,
    VotesSaved,
)
from p2psgd.core.eviction import Barring, Eviction
from p2psgd.core.frontier import Origin
from p2psgd.core.membership import Membership
from p2psgd.core.metrics import Counters, Tally
from p2psgd.core.node_state import Node, NodeState
from p2psgd.core.owners.owners import Owners
from p2psgd.core.owners.relay_trees import RelayTrees
from p2psgd.core.peer import Peer, PeerState
from p2psgd.core.quarantine import Quarantine
from p2psgd.core.readiness import JoinProgress
from p2psgd.core.receive import Applier, Receiver
from p2psgd.core.retention import Retention
from p2psgd.core.ring.contribution import OwnContribution
from p2psgd.core.ring.dense import DenseRounds
from p2psgd.core.ring.reduce import DenseMemory, make_dense_memory
from p2psgd.core.ring.ring import Ring
from p2psgd.core.ring.rounds import OnComplete, RingLife, Rounds
from p2psgd.core.ring.sparse import SparseRounds
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import (
    CREDIT_BYTES,
    Congestion,
    DirectRoutes,
    LogSender,
    NoRoutes,
    Outbound,
    Repair,
    Routes,
)
from p2psgd.core.snapshot_fetch import SnapshotFetch
from p2psgd.core.snapshot_serve import SnapshotServer
from p2psgd.core.state import State
from p2psgd.core.status import StatusSender
from p2psgd.core.timing import Timing
from p2psgd.core.update_log import FrameStore, UpdateLog
from p2psgd.core.view import NO_VOTES, View, Votes
from p2psgd.core.view_change import ViewChange
from p2psgd.wire.evaluation import EvaluationAsked
from p2psgd.wire.frames import FrameType, link_limits
from p2psgd.wire.messages import (
    Accept,
    Accepted,
    EvaluationFetch,
    EvaluationLease,
    EvaluationReport,
    EvaluationResult,
    EvaluationTable,
    Fetch,
    Goodbye,
    Prepare,
    Promise,
    RingBegin,
    RingBucket,
    SnapshotEnd,
    SnapshotRequest,
    Trimmed,
    ViewNews,
)
from p2psgd.wire.mode import Mode, parse_mode
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade
from p2psgd.wire.update import OwnUpdateMade

NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})


class Replica:
    """A node's full copy of the weights and all it knows about which node has applied what."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        me: Origin,
        coordinates: NDArray[np.int32],
        now: float = 0.0,
        timing: Timing | None = None,
        bootstrap_expect: int = 1,
        votes: Votes = NO_VOTES,
        restored: Restored | None = None,
        log_budget_bytes: int = 256 * 1024 * 1024,
        store: FrameStore | None = None,
        store_budget_bytes: int = 0,
        credit_bytes: int = CREDIT_BYTES,
        dense: DenseMemory | None = None,
        memory: ClosureMemory | None = None,
        names: Mapping[int, str] = NO_NAMES,
    ) -> None:
        """Take over `coordinates` int32 (P,), the run's initial ones, or those of `restored`, which then has
        precedence; nobody else may write them from now on. `bootstrap_expect`: nodes that bootstrap the run,
        this one included. `credit_bytes`: what may be on its way through one link. `dense`: the memory of a
        dense ring that a trainer shares, `memory`: that of mode `closure`; None: of its own. `names`: of
        nodes, as far as they are known.
        """
        mode = parse_mode(spec.mode)
        timing = timing or Timing()
        frame_bytes_max = link_limits(spec.coordinates)[FrameType.UPDATE]
        log = UpdateLog(
            budget_bytes=max(log_budget_bytes, 4 * frame_bytes_max),
            store=store,
            store_budget_bytes=store_budget_bytes,
        )
        self.spec = spec
        self.me = me
        self.timing = timing
        self.state = state = State(spec, me, coordinates, log)
        self.lattice = state.lattice  # the weights
        self.frontier = state.frontier  # what is applied
        self.log = log  # what can be given to whoever lacks it
        self.saved = {} if restored is None else state.restore(restored)  # what the latest checkpoint has
        self.counters = Counters()
        self.tally = tally = Tally()
        self.out = out = Outbound(credit_bytes)
        self._compose_cluster(bootstrap_expect=bootstrap_expect, votes=votes, names=names, now=now)
        cluster = self.cluster
        self.joining = JoinProgress(me, timing, now)
        self.node = node = Node(self.joining)
        self.retention = Retention(state, acks=self.acks, saved=self.saved)
        self.scanner = scanner = SliceScanner(state, timing, now)
        self.log_sender = LogSender(state, out, node, self._make_routes(mode))
        self.repair = Repair(failure_timeout_s=timing.failure_timeout_s)
        self.given = OwnContribution()
        self._ring_life = RingLife()
        self._congestion = Congestion(me)
        self._applier = Applier(state, out=out, tally=tally, delivers_own=mode.owners)
        self.status_sender = StatusSender(cluster, state, node=node, saved=self.saved, out=out)
        self._compose_receiver()
        self._checkpoints = Checkpoints(cluster, state, node=node, scanner=scanner, saved=self.saved, out=out)
        self._barring = Barring(cluster, out)
        self._eviction = Eviction(cluster, node=node, retention=self.retention, tally=tally, out=out, now=now)
        self._compose_snapshots()
        self._view, self._node_state = self.membership.view, node.state  # after the event before
        self._compose_view_change()
        self.ring = self._make_ring(mode, dense, now) if mode.ring else None
        self.owners = self._make_owners(mode, restored, now) if mode.owners else None
        self.closure = self._make_closure(memory) if mode.closure else None
        self.rounds = self.ring or (self.owners if mode.rounds else None)  # None: no node waits for others

    def _compose_cluster(
        self, *, bootstrap_expect: int, votes: Votes, names: Mapping[int, str], now: float
    ) -> None:
        known = dict(names)
        peers: dict[Origin, Peer] = {}
        self.acks = Acknowledgements(self.me)
        self.membership = Membership(  # the view, and what is being decided
            self.me,
            bootstrap_expect=bootstrap_expect,
            two_nodes=self.spec.two_nodes,
            timing=self.timing,
            votes=votes,
            now=now,
            names=known,
        )
        self.cluster = Cluster(
            me=self.me,
            timing=self.timing,
            membership=self.membership,
            acks=self.acks,
            peers=peers,
            names=known,
        )
        self.peers: Mapping[Origin, Peer] = peers  # the linked ones
        self.names: Mapping[int, str] = known  # what people call nodes, by id

    def _compose_receiver(self) -> None:
        self.receiver = Receiver(
            self.cluster,
            self.state,
            node=self.node,
            ring_life=self._ring_life,
            given=self.given,
            applier=self._applier,
            retention=self.retention,
            log_sender=self.log_sender,
            repair=self.repair,
            congestion=self._congestion,
            out=self.out,
            counters=self.counters,
            tally=self.tally,
            send_status=self.status_sender.send,
        )

    def _compose_view_change(self) -> None:
        self._view_change = ViewChange(
            self.cluster,
            self.state,
            joining=self.joining,
            node=self.node,
            retention=self.retention,
            taking=self.fetch.taking,
            status_sender=self.status_sender,
            eviction=self._eviction,
            counters=self.counters,
            out=self.out,
        )

    def _compose_snapshots(self) -> None:
        """Make both sides of a snapshot, and the quarantine, which needs them."""
        self.server = SnapshotServer(
            self.cluster,
            self.state,
            node=self.node,
            scanner=self.scanner,
            log_sender=self.log_sender,
            counters=self.counters,
            out=self.out,
        )
        self.fetch = SnapshotFetch(
            self.cluster,
            self.state,
            joining=self.joining,
            node=self.node,
            ring_life=self._ring_life,
            given=self.given,
            repair=self.repair,
            scanner=self.scanner,
            server=self.server,
            counters=self.counters,
            out=self.out,
        )
        self._quarantine = Quarantine(
            self.state,
            node=self.node,
            scanner=self.scanner,
            server=self.server,
            counters=self.counters,
            out=self.out,
            timing=self.timing,
        )

    def _make_routes(self, mode: Mode) -> Routes:
        if mode.owners:
            return RelayTrees(self.cluster, weights=self.spec.weights)
        return NoRoutes() if mode.ring else DirectRoutes(self.me)

    def _make_ring(self, mode: Mode, memory: DenseMemory | None, now: float) -> Ring:
        def make_rounds(on_complete: OnComplete) -> Rounds:
            if not mode.dense:
                return SparseRounds(
                    self.cluster,
                    self.state,
                    own=self.given,
                    applier=self._applier,
                    out=self.out,
                    on_complete=on_complete,
                )
            return DenseRounds(
                self.cluster,
                self.state,
                memory or make_dense_memory(self.spec.weights),
                node=self.node,
                scanner=self.scanner,
                out=self.out,
                on_complete=on_complete,
            )

        return Ring(
            self.cluster,
            self.state,
            make_rounds,
            node=self.node,
            life=self._ring_life,
            taking=self.fetch.taking,
            status_sender=self.status_sender,
            retention=self.retention,
            out=self.out,
            mode=mode,
            now=now,
        )

    def _make_owners(self, mode: Mode, restored: Restored | None, now: float) -> Owners:
        owners = Owners(
            self.cluster,
            self.state,
            node=self.node,
            applier=self._applier,
            retention=self.retention,
            status_sender=self.status_sender,
            log_sender=self.log_sender,
            out=self.out,
            published=self._published,
            restored=() if restored is None else restored.rule_states,
            rounds=mode.rounds,
            now=now,
        )
        self.receiver.covered = owners.covered
        if owners.custody is not None:
            self._checkpoints.rule_states = owners.custody.pack
        self.status_sender.covered_steps = owners.covered_steps
        return owners

    def _make_closure(self, memory: ClosureMemory | None) -> Closure:
        return Closure(self.cluster, self.spec, memory or make_memory(self.spec.weights), out=self.out)

    # -- what others look at

    @property
    def sequence(self) -> int:
        """Number of own updates so far."""
        return self.frontier.sequence(self.me)

    @property
    def rounds_done(self) -> int:
        """Return the last round that is complete here."""
        return self.ring.rounds.done if self.ring is not None else self.owners.round if self.owners else 0

    @property
    def ready(self) -> bool:
        """Return whether this node is a member whose replica is complete."""
        return self.node.ready

    @property
    def may_leave(self) -> bool:
        """Return whether, after NodeStopping, this node is out of the view, or no linked node would take it
        out.
        """
        view = self.membership.view
        others = [peer for peer in self.peers.values() if peer.origin in view]
        return self.me not in view or all(peer.state is PeerState.LEAVING for peer in others)

    @property
    def view(self) -> View:
        """The latest view that was decided."""
        return self.membership.view

    @property
    def admitted(self) -> bool:
        """Return whether this incarnation has been a member."""
        return self.membership.admitted_in is not None

    @property
    def damaged(self) -> bool:
        """Return whether the weights are wrong, and cannot be made anew from checkpoint and log."""
        return self.node.state is NodeState.FETCHING

    @property
    def updates_applied(self) -> int:
        """Updates of all origins that the replica holds."""
        return sum(sequence for _, (sequence, _, _) in self.frontier.items())

    @property
    def unacknowledged(self) -> int:
        """Own updates that no peer has acknowledged."""
        return self.sequence - self.tally.acknowledged

    @property
    def linked_nodes(self) -> set[int]:
        """The linked peers' node ids."""
        return {peer.node for peer in self.peers}

    def lags(self) -> dict[Origin, int]:
        """Return for each linked peer that may follow how many of our own updates it has not acknowledged."""
        return {peer.origin: self.lag(peer) for peer in self.peers.values() if not peer.barred}

    def applied_by_peers(self) -> dict[int, int]:
        """Return for each linked peer that is ready how many updates of all origins it has applied."""
        return {
            peer.origin.node: sum(row.sequence for row in peer.status.values())
            for peer in self.peers.values()
            if peer.ready and peer.status
        }

    def has_reported_view(self, peer: Origin) -> bool:
        """Return whether this linked peer has reported which view it knows."""
        known = self.peers.get(peer)
        return known is not None and known.view > 0

    def lag(self, peer: Peer) -> int:
        """Return how many of our own updates a peer has not acknowledged."""
        return self.sequence - peer.has(self.me)

    def congested(self, now: float) -> bool:
        """Return whether every peer that follows us is far behind: the network or the peers carry less than
        we make.
        """
        return self._congestion.is_general(self.peers.values(), since=now - self.timing.failure_timeout_s)

    @property
    def trainer_digest(self) -> int:
        """Return the digest of what `trainer_weights` returns."""
        return self.lattice.digest if self.owners is None else self.owners.trainer_digest

    def trainer_weights(self) -> NDArray[np.int32]:
        """Return what the weights of this node's trainer must be, int32 (C,): for reading, at once."""
        return self.lattice.coordinates if self.owners is None else self.owners.trainer_weights()

    def waiting_for(self) -> str:
        """Return in one sentence why this node is not READY or its trainer must wait; empty if neither.
        `ring` names the nodes whose contribution a round waits for.
        """
        return self._view_change.explain() or ("" if self.ring is None else self.ring.standstill)

    # -- events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at `now` (seconds, monotonic) and return the effects to carry out, in order."""
        match event:
            case FrameReceived():
                peer = self.peers.get(event.peer)
                if peer is not None:  # else it arrived after its link was closed
                    self._hear(peer, event.message, now)
            case LinkDrained():
                peer = self.peers.get(event.peer)
                if peer is not None:
                    self._go_on_with(peer, now)
            case (
                OwnUpdateMade()
                | TrainerChanged()
                | ContributionMade()
                | BucketContributed()
                | EvaluationAsked()
            ):
                self._hear_trainer(event, now)
            case LinkOpened():
                self._open_link(event, now)
            case LinkClosed():
                self._close_link(event.peer, now)
            case TimePassed():
                self.status_sender.loss = event.loss
                self._pass_time(now)
            case Resumed():
                self._take_turn(now)
            case CheckpointDue() | CheckpointWritten() | CheckpointRead() | VotesSaved():
                self._hear_disk(event, now)
            case (
                RemovalRequested() | BootstrapExpectChanged() | ScrubRequested() | HandOver() | NodeStopping()
            ):
                self._hear_operator(event, now)
            case _:
                assert_never(event)
        return self._finish(now)

    def _hear(self, peer: Peer, message: PeerMessage, now: float) -> None:
        peer.last_seen = now
        try:
            if peer.state is PeerState.BARRED:
                self._barring.on_message(peer, message, now)
            else:
                self._take_in(peer, message, now)
        except PeerError as error:
            if error.code is RejectCode.SNAPSHOT:
                self.fetch.refused(peer.origin, now)
            self.out.emit(Drop(peer.origin, error.code, error.details))

    def _take_in(  # noqa: PLR0912 (one case a message)
        self, peer: Peer, message: PeerMessage, now: float
    ) -> None:
        """Do what a frame means. What is checked of each: SPEC.md, 11; VIEWS.md, 23; RINGS.md, 29."""
        match message:
            case UpdateBody():
                self.receiver.update(peer, message.body, now)
            case ContributionBody():
                if self.owners is None:
                    raise PeerError(
                        RejectCode.CONTRIBUTION, "a contribution came in a run whose ranges have no owners"
                    )
                self.owners.take(peer, message.body, now)
            case RuleStateBody():
                if self.owners is None or self.owners.custody is None:
                    raise PeerError(
                        RejectCode.RULE_STATE, "the state of a rule came in a run whose owners have none"
                    )
                self.owners.custody.take(peer, message.body)
            case PeerStatus():
                self.receiver.status(peer, message, now)
                if self.owners is not None:
                    self.owners.hear_steps(peer, message.steps)
                if self.ring is not None:
                    self.ring.on_status(peer, message, now)
                if self.owners is not None:
                    self.owners.on_status(peer, message, now)
            case Fetch():
                self.log_sender.serve(peer, message, now)
            case Trimmed():
                origin = Origin(message.node, message.incarnation)
                self.repair.note_trimmed(origin, peer.origin, message.trimmed_to)
            case Prepare() | Promise() | Accept() | Accepted() | ViewNews():
                self.membership.on_vote(peer.origin, message, now)
            case Goodbye():
                peer.leave()
                self.membership.leaving(peer.origin.node)
            case SnapshotRequest():
                self.server.give(peer, now)
            case SnapshotStart():
                self.fetch.begin(peer, message, now)
            case SnapshotCover() | SnapshotChunk() | SnapshotTail():
                self.fetch.take(peer, message, now)
            case SnapshotEnd():
                if self.fetch.end(peer, message, now):
                    self._tell_of_snapshot(now)
            case RingBegin() | RingUpdate() | RingBucket() | RingChunk():
                if self.ring is None:
                    raise PeerError(RejectCode.RING, "a frame of a ring came in a run that has none")
                self.ring.on_message(peer, message, now)
            case (
                EvaluationReport()
                | EvaluationLease()
                | EvaluationTable()
                | EvaluationResult()
                | EvaluationFetch()
                | EvaluationNumbers()
            ):
                if self.closure is None:
                    raise PeerError(
                        RejectCode.EVALUATION, "a frame of an evaluation came in a run that makes none"
                    )
                self.closure.on_message(peer, message, now)
            case _:
                assert_never(message)

    # -- the trainer

    def _hear_trainer(self, event: TrainerEvent, now: float) -> None:
        if isinstance(event, OwnUpdateMade):
            assert self.rounds is None, "an update was made alone in a run that makes them in rounds"
            if self.owners is not None:
                self.owners.give(event, now)
            else:
                self._applier.apply_own(event)
                self._congestion.made(event.steps, self.frontier.sequence(self.me))
                self._push_all(now)
            return
        if self.closure is not None:
            self._hear_closure(self.closure, event, now)
            return
        assert self.rounds is not None, event
        assert not isinstance(event, EvaluationAsked), "an evaluation was asked for in a run that makes none"
        if isinstance(event, TrainerChanged):
            self.rounds.change_trainer(event.active, now)
        else:
            self.rounds.share(event, now)

    def _hear_closure(self, closure: Closure, event: TrainerEvent, now: float) -> None:
        if isinstance(event, TrainerChanged):
            closure.change_trainer(event.active, now)
        else:
            assert isinstance(event, EvaluationAsked), event
            closure.ask(event, now)

    # -- the disk, and people

    def _hear_disk(self, event: DiskEvent, now: float) -> None:
        match event:
            case CheckpointDue():
                self._checkpoints.want()
            case CheckpointWritten():
                self._checkpoints.written(successfully=event.written)
            case CheckpointRead():
                self._quarantine.checkpoint_read(event, now)
            case VotesSaved():
                self.membership.saved(event.revision, now)

    def _hear_operator(self, event: OperatorEvent, now: float) -> None:
        match event:
            case RemovalRequested():
                self.membership.remove(event.node, forbid=event.forbid)
            case BootstrapExpectChanged():
                self.membership.expect(event.nodes)
            case ScrubRequested():
                self.scanner.scrub_soon(now)
            case HandOver():
                if self.owners is not None:
                    self.owners.hand_over(now)
            case NodeStopping():
                self._say_goodbye(event.why, now)

    # -- links

    def _open_link(self, event: LinkOpened, now: float) -> None:
        for older in [origin for origin in self.peers if origin.node == event.peer.node]:
            self._close_link(older, now)
        credit = self.out.credit_bytes
        peer = Peer(event.peer, event.name, last_seen=now, last_progress=now, credit=credit)
        self.cluster.peers[event.peer] = peer
        self.cluster.learn_name(event.peer.node, event.name, origins=self.frontier)
        if event.peer.node in self.membership.view.forbidden:
            peer.bar(now)
        else:
            self.membership.link(event.peer, now)
        self.status_sender.send(peer, now)
        if self.owners is not None:
            self.owners.link(peer, now)
        if self.closure is not None:
            self.closure.link(peer, now)

    def _close_link(self, origin: Origin, now: float) -> None:
        peer = self.cluster.peers.pop(origin, None)
        if peer is not None:
            self.acks.link_closed(origin)
            self._forget(peer, now)

    def _forget(self, peer: Peer, now: float) -> None:
        """Expect nothing of a peer any more, and give it nothing."""
        self.repair.forget(peer.origin)
        self.membership.unlink(peer.origin)
        self.server.forget(peer)
        self.fetch.forget(peer, now)
        if self.ring is not None:
            self.ring.unlink(peer.origin, now)
        if self.closure is not None:
            self.closure.unlink(peer.origin)
        self.log_sender.follow_all(self.peers.values(), now)

    def _bar(self, now: float) -> None:
        """Reset, after a new view, the links of the nodes that it removes for good; send the view to those
        barred before.
        """
        for peer in self.peers.values():
            if peer.barred:
                self._barring.tell(peer)
            elif peer.origin.node in self.membership.view.forbidden:
                self._forget(peer, now)
                peer.bar(now)
                self.acks.forget_hearsay()  # what it told of others

    def _go_on_with(self, peer: Peer, now: float) -> None:
        """Go on with a peer that has credit again: acknowledge and ask before updates take it, or on a link
        that is always busy neither would ever be sent.
        """
        self.out.refill(peer)
        if now >= peer.status_due:
            self.status_sender.send(peer, now)
        if peer.barred:
            return
        self.receiver.ask_for_all(peer, now)
        if self.ring is not None:
            self.ring.drained(peer, now)
        if self.owners is not None:
            self.owners.push(peer, now)  # before updates of others that the peer has asked for
        if self.closure is not None:
            self.closure.drained(peer)
        self.log_sender.push(peer, now)
        if self.owners is not None:
            self.owners.push(peer, now)  # after updates of this node, without which it gets none

    def _push_all(self, now: float) -> None:
        for peer in self.peers.values():
            self.log_sender.push(peer, now)

    def _published(self, steps: int, now: float) -> None:
        self._congestion.made(steps, self.frontier.sequence(self.me))
        self._push_all(now)

    def _say_goodbye(self, why: str, now: float) -> None:
        """Send the last acknowledgement, so that no peer waits for it, and GOODBYE (VIEWS.md, 22)."""
        if self.owners is not None:
            self.owners.hand_over(now)
        self.membership.stop(why)
        if self.ring is not None:
            self.ring.leave(now)
        self.status_sender.send_to_all(now, always=True)
        for peer in self.peers.values():
            self.out.send_message(peer, Goodbye(sequence=self.sequence))

    # -- time

    def _finish(self, now: float) -> list[Effect]:
        """Follow what any event may have changed; return all effects, another turn among them if there is
        work for one.
        """
        changed = self.membership.view is not self._view
        if changed:
            self._view = self.membership.view
            self._bar(now)
            self.log_sender.follow_all(self.peers.values(), now)
        ready = self.node.state is self._node_state is NodeState.READY  # and was after the event before
        if changed or self.membership.effects or not ready:
            self._view_change.look(now)
            self._node_state = self.node.state
        if self.ring is not None:
            self.ring.look(now)
        if self.owners is not None:
            self.owners.look(now)
        adopting = self.fetch.taking.adoption is not None
        rebuilding = self.node.state is NodeState.REPAIRING and self._quarantine.rebuild is not None
        if self.scanner.copying is not None or adopting or rebuilding or self.log.untidy:
            self.out.order_turn()
        return self.out.take()

    def _take_turn(self, now: float) -> None:
        """Do one part of each thing that would take long as a whole."""
        self.out.turn_passed()
        self.scanner.turn()
        self._quarantine.turn(now)
        if self.fetch.turn(now):
            self._tell_of_snapshot(now)
        self.log.tidy()
        self._push_all(now)

    def _tell_of_snapshot(self, now: float) -> None:
        self.receiver.replaced()
        if self.owners is not None:
            self.owners.replaced(now)
        self.status_sender.send_to_all(now)
        self._push_all(now)

    def _pass_time(self, now: float) -> None:
        silence_s = self.timing.silence_s
        for peer in self.peers.values():
            silent_s = now - peer.last_seen
            if silent_s > silence_s:
                words = f"nothing came from {peer.name} for {silent_s:.0f} s"
                self.out.emit(Drop(peer.origin, RejectCode.SILENT, words))
            elif now >= peer.status_due:
                self.status_sender.send(peer, now)
        self._barring.tick(now)
        for peer_ahead, words in self.membership.take_unbacked(now).items():
            self.out.emit(Drop(peer_ahead, RejectCode.VIEW, words))
        if self.ring is not None:
            self.ring.tick(now)
        late = (
            self.ring.late if self.ring is not None else self.owners.unreachable(now) if self.owners else {}
        )
        self._eviction.look(late, now)
        self.membership.tick(now, ready=self.ready)
        self._quarantine.tick(now)
        self._checkpoints.try_begin()
        self.server.tick(now)
        self.fetch.tick(now, full=self.receiver.lacks_room())
        self.repair.clean(self.frontier, self.peers)
        self.acks.keep({*self.membership.view.members, *self.peers})
        if self.owners is not None:
            self.owners.tick(now)
        if self.closure is not None:
            self.closure.tick(now)
