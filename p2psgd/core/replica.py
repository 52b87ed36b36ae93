"""The replica: the one place where replication decides anything.

`handle(event, now)` takes what happened and returns what to do; it alone changes the weights, the frontier,
the log and the cursors. No sockets, no clock of its own, no randomness: the daemon and a simulator run the
same code. What it knows and does is in files of their own: state (weights, frontier, log), receive, send
(what peers are given, whom to ask), membership (agreed views), view_change (what they mean), acks, readiness
(READY), snapshot, scrub (and copies), quarantine, retention and eviction (trimming), checkpoint, and in ring
mode ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.checkpoint import Checkpoints
from p2psgd.core.context import assemble
from p2psgd.core.effects import Drop, Effect
from p2psgd.core.events import (
    BootstrapExpectChanged,
    CheckpointDue,
    CheckpointRead,
    CheckpointWritten,
    Event,
    GapReceived,
    GoodbyeReceived,
    LinkClosed,
    LinkDrained,
    LinkEvent,
    LinkMeasured,
    LinkOpened,
    NeedReceived,
    NodeStopping,
    RemovalAsked,
    Restored,
    RingEvent,
    ScrubRequested,
    SnapshotAsked,
    SnapshotBegun,
    SnapshotChunkReceived,
    SnapshotEnded,
    SnapshotTailReceived,
    StatusReceived,
    TimePassed,
    TrainerChanged,
    TurnPassed,
    UpdateReceived,
    VoteReceived,
    VotesSaved,
)
from p2psgd.core.eviction import Barring, Upkeep
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import NodeState
from p2psgd.core.peer import CREDIT_BYTES, Peer, PeerState
from p2psgd.core.quarantine import Quarantine
from p2psgd.core.receive import Receiver, apply_own
from p2psgd.core.ring.reduce import DenseMemory
from p2psgd.core.ring.ring import Ring
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.send import Congestion
from p2psgd.core.snapshot import Snapshots
from p2psgd.core.state import State
from p2psgd.core.status import Statuses
from p2psgd.core.timing import Timing
from p2psgd.core.update_log import FrameStore, UpdateLog
from p2psgd.core.view import NO_VOTES, View, Votes
from p2psgd.core.view_change import Following, explain
from p2psgd.errors import PeerError
from p2psgd.wire.frames import FrameType, link_limits
from p2psgd.wire.messages import Goodbye
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.ring_messages import BucketShared, RoundShared
from p2psgd.wire.update import OwnUpdateMade

NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})
NAMES_MAX: Final = 4096  # more than links, members and origins there can be together


class Replica:
    """One node's full copy of the weights and all it knows about who has applied what."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        me: Origin,
        coordinates: NDArray[np.int32],
        now: float = 0.0,
        timing: Timing | None = None,
        founders: int = 1,
        votes: Votes = NO_VOTES,
        restored: Restored | None = None,
        log_budget_bytes: int = 256 * 1024 * 1024,
        store: FrameStore | None = None,
        store_budget_bytes: int = 0,
        credit_bytes: int = CREDIT_BYTES,
        dense: DenseMemory | None = None,
        names: Mapping[int, str] = NO_NAMES,
    ) -> None:
        """Take over `coordinates` int32 (P,), the run's initial ones, or those of `restored`, which then has
        precedence; nobody else may write them from now on. `founders`: nodes that found the run together,
        this one included. `credit_bytes`: what may be on its way through one link. `dense`: the memory of a
        dense ring that a trainer shares; None: of its own. `names`: of nodes, as far as they are known.
        """
        mode = parse_mode(spec.mode)
        timing = timing or Timing()
        frame_bytes_max = link_limits(spec.weights)[FrameType.UPDATE]
        log = UpdateLog(
            budget_bytes=max(log_budget_bytes, 4 * frame_bytes_max),
            store=store,
            store_budget_bytes=store_budget_bytes,
        )
        state = State(spec, me, coordinates, log)
        self.spec = spec
        self.me = me
        self.timing = timing
        self.parts = parts = assemble(
            state, timing=timing, founders=founders, votes=votes, credit_bytes=credit_bytes, now=now
        )
        if restored is not None:
            parts.saved = state.restore(restored)
        parts.names |= names
        self.lattice = state.lattice  # the weights
        self.frontier = state.frontier  # what is applied
        self.log = log  # what can be given to whoever lacks it
        self.peers: Mapping[Origin, Peer] = parts.peers  # the linked ones
        self.membership = parts.membership  # the view, and what is being decided
        self.snapshots = Snapshots(parts)
        self._quarantine = Quarantine(parts, self.snapshots)
        self.statuses = Statuses(parts)
        self._congestion = Congestion(me)
        self._receiver = Receiver(parts, self._congestion, send_status=self.statuses.send)
        self._barring = Barring(parts)
        self._view = parts.membership.view
        self._upkeep = Upkeep(parts, now)
        self._checkpoints = Checkpoints(parts)
        self._following = Following(parts, self.statuses, self._upkeep, self.snapshots.taking)
        self.ring: Ring | None = None
        if mode.ring:
            taking = self.snapshots.taking
            self.ring = Ring(parts, self.statuses, taking, mode=mode, memory=dense, now=now)

    # -- what others look at

    @property
    def names(self) -> Mapping[int, str]:
        """What people call the nodes that were linked or are known from a checkpoint, by node."""
        return self.parts.names

    @property
    def sequence(self) -> int:
        """Number of own updates so far."""
        return self.frontier.sequence(self.me)

    @property
    def ready(self) -> bool:
        """This node is a member whose replica is complete."""
        return self.parts.ready

    @property
    def stalled(self) -> bool:
        """The log is full of what others have not acknowledged: the trainer must wait."""
        return self.parts.stalled

    @property
    def may_leave(self) -> bool:
        """After NodeStopping: this node is out of the view, or nobody linked would take it out."""
        view = self.membership.view
        others = [peer for peer in self.peers.values() if peer.origin in view]
        return self.me not in view or all(peer.state is PeerState.LEAVING for peer in others)

    @property
    def view(self) -> View:
        """The latest view that was decided."""
        return self.membership.view

    @property
    def admitted(self) -> bool:
        """This incarnation has been a member."""
        return self.membership.admitted_in is not None

    @property
    def view_waits(self) -> str:
        """One sentence: what the next view waits for; empty if there is nothing to decide."""
        return self.membership.explain()

    @property
    def damaged(self) -> bool:
        """The weights are wrong, and cannot be made anew from checkpoint and log."""
        return self.parts.node.state is NodeState.FETCHING

    @property
    def round_runs(self) -> bool:
        """In ring mode: an attempt is under way here."""
        return self.ring is not None and self.ring.running

    @property
    def log_capacity(self) -> int:
        """Bytes that the log may hold, in memory and on disk."""
        return self.log.capacity

    @property
    def updates_applied(self) -> int:
        """Updates of all origins that the replica holds."""
        return sum(sequence for _, (sequence, _, _) in self.frontier.items())

    @property
    def bytes_applied(self) -> int:
        """Bytes of the frames applied since this incarnation began, own and peers'."""
        return self.parts.tally.bytes_applied

    @property
    def unacknowledged(self) -> int:
        """Own updates that no peer has acknowledged."""
        return self.sequence - self.parts.tally.acknowledged

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

    def has_told_view(self, peer: Origin) -> bool:
        """Whether this linked peer has told which view it knows."""
        known = self.peers.get(peer)
        return known is not None and known.view > 0

    def lag(self, peer: Peer) -> int:
        """How many of our own updates a peer has not acknowledged."""
        return self.sequence - peer.has(self.me)

    def congested(self, now: float) -> bool:
        """Every peer that follows us is far behind: the network or the peers carry less than we make."""
        return self._congestion.is_general(self.peers.values(), since=now - self.timing.patience_s)

    def name_of(self, origin: Origin) -> str:
        """What people call this origin's node."""
        return self.parts.name_of(origin)

    def waiting_for(self) -> str:
        """One sentence: why this node is not READY or its trainer must wait; empty if neither. Whose share a
        round waits for is said by `ring`.
        """
        return explain(self.parts, self.snapshots.taking) or self.parts.standstill

    # -- events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at `now` (seconds, monotonic) and return what is to be done, in order."""
        match event:
            case OwnUpdateMade() | TrainerChanged() | RoundShared() | BucketShared():
                self._hear_trainer(event, now)
            case LinkOpened():
                self._open_link(event, now)
            case LinkClosed():
                self._close_link(event.peer, now)
            case TimePassed():
                self.statuses.loop_lag_ms = event.loop_lag_ms
                self._pass_time(now)
            case TurnPassed():
                self._take_turn(now)
            case CheckpointDue() | CheckpointWritten() | CheckpointRead() | VotesSaved():
                self._hear_disk(event, now)
            case RemovalAsked() | BootstrapExpectChanged() | ScrubRequested() | NodeStopping():
                self._hear_operator(event, now)
            case _:
                self._hear(event, now)
        self._look_around(now)
        return self._orders()

    def _hear(self, event: LinkEvent, now: float) -> None:
        peer = self.peers.get(event.peer)
        if peer is None:
            return  # it arrived after its link was closed
        if not isinstance(event, LinkDrained | LinkMeasured):
            peer.heard = now
        try:
            self._take_in(peer, event, now)
        except PeerError as error:
            if error.reason == "snapshot":
                self.snapshots.refused(peer.origin, now)
            self.parts.out.order(Drop(peer.origin, error.reason, str(error)))

    def _take_in(self, peer: Peer, event: LinkEvent, now: float) -> None:
        if peer.barred and not isinstance(event, LinkDrained):
            self._barring.hear(peer, event, now)
            return
        match event:
            case UpdateReceived():
                self._receiver.update(peer, event.body, now)
            case StatusReceived():
                self._receiver.status(peer, event, now)
                self._hear_ring(peer, event, now)
            case NeedReceived():
                self.parts.feeder.serve(peer, event, now)
            case GapReceived():
                self.parts.repair.gap(event.origin, peer.origin, event.floor)
            case LinkDrained():
                self._go_on_with(peer, now)
                self.parts.feeder.push(peer, now)
            case LinkMeasured():
                peer.round_trip_us, peer.bytes_per_s = event.round_trip_us, event.bytes_per_s
            case VoteReceived():
                self.membership.hear_vote(peer.origin, event.message, now)
            case GoodbyeReceived():
                peer.leave()
                self.membership.leaving(peer.origin.node)
            case (
                SnapshotAsked()
                | SnapshotBegun()
                | SnapshotChunkReceived()
                | SnapshotTailReceived()
                | SnapshotEnded()
            ):
                if self.snapshots.hear(peer, event, now):
                    self._tell_of_snapshot(now)
            case _:
                self._hear_ring(peer, event, now)

    def _hear_ring(self, peer: Peer, event: StatusReceived | RingEvent, now: float) -> None:
        if self.ring is not None:
            self.ring.hear(peer, event, now)
        elif not isinstance(event, StatusReceived):
            raise PeerError("ring", "a frame of a ring came in a run that has none")

    # -- the trainer

    def _hear_trainer(
        self, event: OwnUpdateMade | TrainerChanged | RoundShared | BucketShared, now: float
    ) -> None:
        if isinstance(event, OwnUpdateMade):
            assert self.ring is None, "an update was made alone in a run that makes them in rounds"
            apply_own(self.parts, event)
            self._congestion.made(event.mini_batch, self.sequence)
            self._push_all(now)
            return
        assert self.ring is not None, event
        if isinstance(event, TrainerChanged):
            self.ring.change_trainer(event.active, now)
        else:
            self.ring.share(event, now)

    # -- the disk, and people

    def _hear_disk(
        self, event: CheckpointDue | CheckpointWritten | CheckpointRead | VotesSaved, now: float
    ) -> None:
        match event:
            case CheckpointDue():
                self._checkpoints.want()
            case CheckpointWritten():
                self._checkpoints.written(successfully=event.written)
            case CheckpointRead():
                self._quarantine.checkpoint_read(event, now)
            case VotesSaved():
                self.membership.saved(event.revision, now)

    def _hear_operator(
        self, event: RemovalAsked | BootstrapExpectChanged | ScrubRequested | NodeStopping, now: float
    ) -> None:
        match event:
            case RemovalAsked():
                self.membership.remove(event.node, forbid=event.forbid)
            case BootstrapExpectChanged():
                self.membership.founders = event.nodes
            case ScrubRequested():
                self.parts.sweeping.scrub_due = now
            case NodeStopping():
                self._say_goodbye(event.why, now)

    # -- links

    def _open_link(self, event: LinkOpened, now: float) -> None:
        for older in [origin for origin in self.peers if origin.node == event.peer.node]:
            self._close_link(older, now)
        credit = self.parts.out.credit_bytes
        peer = Peer(event.peer, event.name, heard=now, brought=now, credit=credit)
        self.parts.peers[event.peer] = peer
        self._name(event.peer.node, event.name)
        if event.peer.node in self.membership.view.forbidden:
            peer.bar(now)
        else:
            self.membership.link(event.peer, now)
        self.statuses.send(peer, now)

    def _name(self, node: int, name: str) -> None:
        """Remember it; when there are too many, only those of nodes that are linked, members or origins."""
        names = self.parts.names
        names[node] = name
        if len(names) > NAMES_MAX:
            here = {origin.node for origin in (*self.peers, *self.membership.view.members, *self.frontier)}
            for other in names.keys() - here - {node, self.me.node}:
                del names[other]

    def _close_link(self, origin: Origin, now: float) -> None:
        peer = self.parts.peers.pop(origin, None)
        if peer is not None:
            self._forget(peer, now)

    def _forget(self, peer: Peer, now: float) -> None:
        """Expect nothing of a peer any more, and give it nothing."""
        self.parts.repair.forget(peer.origin)
        self.membership.unlink(peer.origin)
        self.snapshots.forget(peer, now)
        if self.ring is not None:
            self.ring.unlink(peer.origin, now)

    def _bar(self, now: float) -> None:
        """After a new view: the links of those that it removes for good are as if they were new, and whoever
        was barred before is told of it.
        """
        for peer in self.peers.values():
            if peer.barred:
                self._barring.tell(peer)
            elif peer.origin.node in self.membership.view.forbidden:
                self._forget(peer, now)
                peer.bar(now)
                self.parts.acks.forget_hearsay()  # what it told of others

    def _go_on_with(self, peer: Peer, now: float) -> None:
        """There is credit again: acknowledge and ask before updates take it, or on a link that is always busy
        neither would ever be said.
        """
        self.parts.out.refill(peer)
        if now >= peer.status_due:
            self.statuses.send(peer, now)
        if peer.barred:
            return
        self._receiver.ask_for_all(peer, now)
        if self.ring is not None:
            self.ring.drained(peer, now)

    def _push_all(self, now: float) -> None:
        for peer in self.peers.values():
            self.parts.feeder.push(peer, now)

    def _say_goodbye(self, why: str, now: float) -> None:
        """The last acknowledgement, so that no peer waits for it, and the farewell."""
        self.membership.stop(why)
        if self.ring is not None:
            self.ring.leave(now)
        self.statuses.send_to_all(now, always=True)
        for peer in self.peers.values():
            self.parts.out.say(peer, Goodbye(sequence=self.sequence))

    # -- time

    def _look_around(self, now: float) -> None:
        """What any event may have changed."""
        if self.membership.view is not self._view:
            self._view = self.membership.view
            self._bar(now)
        self._following.look(now)
        if self.ring is not None:
            self.ring.look(now)

    def _orders(self) -> list[Effect]:
        """All that is to be done, another turn among it if there is work for it."""
        adopting = self.snapshots.taking.adoption is not None
        if self.parts.sweeping.copying or adopting or self._quarantine.rebuilding or self.log.untidy:
            self.parts.out.order_turn()
        return self.parts.out.take()

    def _take_turn(self, now: float) -> None:
        """One part of each thing that would take long as a whole."""
        self.parts.out.turn_passed()
        self.parts.sweeping.turn()
        self._quarantine.turn(now)
        if self.snapshots.turn(now):
            self._tell_of_snapshot(now)
        self.log.tidy()
        self._push_all(now)

    def _tell_of_snapshot(self, now: float) -> None:
        self._receiver.replaced()
        self.statuses.send_to_all(now)
        self._push_all(now)

    def _pass_time(self, now: float) -> None:
        silence_s = self.timing.silence_s
        for peer in self.peers.values():
            silent_s = now - peer.heard
            if silent_s > silence_s:
                words = f"nothing came from {peer.name} for {silent_s:.0f} s"
                self.parts.out.order(Drop(peer.origin, "silent", words))
            elif now >= peer.status_due:
                self.statuses.send(peer, now)
        self._barring.pass_time(now)
        for peer_ahead, words in self.membership.take_unbacked(now).items():
            self.parts.out.order(Drop(peer_ahead, "view", words))
        if self.ring is not None:
            self.ring.pass_time(now)
        self._upkeep.look(now)
        self.membership.pass_time(now, ready=self.ready)
        self._quarantine.pass_time(now)
        self._checkpoints.try_begin()
        self.snapshots.pass_time(now, full=self._receiver.lacks_room())
        self.parts.repair.clean(self.frontier, self.peers)
        self.parts.acks.keep({*self.membership.view.members, *self.peers})
