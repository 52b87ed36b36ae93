"""The joiner's side of a snapshot: when one is needed, which donor is asked, and what becomes of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from typing import Final

from p2psgd.base.transitions import Lifecycle, Transitions
from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Alert, Drop, LogEvent, Reload, Shutdown
from p2psgd.core.events import SnapshotChunk, SnapshotCover, SnapshotStart, SnapshotTail
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.metrics import Counters
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.readiness import JoinProgress
from p2psgd.core.ring.contribution import OwnContribution
from p2psgd.core.ring.rounds import IN_STEP, RingLife
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import Outbound, Repair
from p2psgd.core.snapshot_install import (
    Adoption,
    ContradictionError,
    Place,
    SnapshotIntake,
    contradicted_by,
    contradicted_by_rows,
)
from p2psgd.core.snapshot_serve import SnapshotServer
from p2psgd.core.state import State
from p2psgd.core.timing import Timing
from p2psgd.core.view import View
from p2psgd.wire.messages import ORIGINS_MAX, SnapshotEnd, SnapshotRequest
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# The joiner's side of a snapshot: which peer to ask, what has come, and when to try another donor.


LOSSY_TIMEOUTS: Final = 3  # so long a donor is sought from which nothing would be lost,
UNREADY_TIMEOUTS: Final = 12  # or so long as no READY member is linked: others may be about to be given it


class FetchState(enum.Enum):
    """States of the fetch of a snapshot."""

    IDLE = "idle"  # nobody was asked
    REQUESTED = "requested"  # the donor makes its copy
    RECEIVING = "receiving"  # weights, then the tail of its log
    CATCHING_UP = "catching up"  # all has come: the updates that it lacks are applied to it


_FAILS: Final = "the donor is silent, gone, wrong or has none"
FETCH: Final = Transitions(
    "snapshot fetch",
    FetchState.IDLE,
    {
        FetchState.IDLE: {FetchState.REQUESTED: "a donor is asked"},
        FetchState.REQUESTED: {FetchState.RECEIVING: "its SNAPSHOT_META comes", FetchState.IDLE: _FAILS},
        FetchState.RECEIVING: {
            FetchState.CATCHING_UP: "SNAPSHOT_END comes, and nothing contradicts it",
            FetchState.IDLE: f"{_FAILS}; or what came is of no use",
        },
        FetchState.CATCHING_UP: {
            FetchState.IDLE: "it is installed, or the log contradicts it, or was trimmed beyond it"
        },
    },
)


class FetchProgress(Lifecycle[FetchState]):
    """Progress of the one snapshot that may be under way."""

    def __init__(self, timing: Timing) -> None:
        super().__init__(FETCH)
        self.donor: Origin | None = None
        self.intake: SnapshotIntake | None = None
        self.adoption: Adoption | None = None  # all has come, and is being taken
        self.bytes_taken = 0
        self.least_loss = 0  # updates that would be lost by the best of the donors chosen from last
        self._timing = timing
        self.began = self._moved = 0.0
        self._resting_until = 0.0
        self._avoid: dict[Origin, float] = {}  # donors that had none to give, and until when
        self._lossy_since: float | None = None
        self._none_is_ready = False  # of the donors chosen from last

    def choose(
        self,
        peers: Mapping[Origin, Peer],
        view: View,
        state: State,
        *,
        beyond: Set[Origin],
        anyway: bool,
        now: float,
    ) -> Peer | None:
        """Return a donor to ask now, or None. It is a READY member, or any member if none is READY. Nothing
        that was applied here would be lost by taking its replica. It has more of an origin in `beyond`, or of
        any origin if that is empty, or is taken `anyway`.
        """
        members = [peer for peer in peers.values() if peer.origin in view and peer.status is not None]
        able = [peer for peer in members if peer.ready] or members
        self._none_is_ready = not any(peer.ready for peer in able)
        useful = [peer for peer in able if anyway or self._is_ahead(peer, state, beyond)]
        losses = {peer.origin: self._loss(peer, state) for peer in members}
        harmless = [peer for peer in useful if not losses[peer.origin]]
        self.least_loss = min((losses[peer.origin] for peer in useful), default=0)
        whole = {peer.origin.node for peer in members if not losses[peer.origin]}
        if any(peer.ready and peer.origin.node in whole for peer in members) or view.is_majority(
            whole | {state.me.node}
        ):
            self.least_loss = 0  # one member's claim does not cost what others have as well
        if not self.least_loss:
            self._lossy_since = None
        elif self._lossy_since is None:
            self._lossy_since = now
        if now < self._resting_until:
            return None
        harmless.sort(key=lambda peer: -peer.has(RING))  # in a dense ring: who is furthest
        return next((peer for peer in harmless if self._avoid.get(peer.origin, 0.0) <= now), None)

    def need_none(self) -> None:
        """Note that no snapshot is needed: the next need has its full time again."""
        self._lossy_since = None

    @staticmethod
    def _is_ahead(peer: Peer, state: State, beyond: Set[Origin]) -> bool:
        origins = beyond or (peer.status or {}).keys()
        return any(peer.has(origin) > state.frontier.sequence(origin) for origin in origins)

    @staticmethod
    def _loss(peer: Peer, state: State) -> int:
        """Return how many updates applied here would be lost by taking this peer's replica."""
        return state.lost_by({origin: row.sequence for origin, row in (peer.status or {}).items()})

    def hopeless(self, now: float) -> bool:
        """Return whether, for three failure timeouts, or twelve while no donor is READY, every donor's
        replica has lacked something that only this one has applied and its log no longer holds.
        """
        failure_timeouts = UNREADY_TIMEOUTS if self._none_is_ready else LOSSY_TIMEOUTS
        waited = failure_timeouts * self._timing.failure_timeout_s
        return self._lossy_since is not None and now - self._lossy_since > waited

    def ask(self, donor: Origin, now: float) -> None:
        """Begin the fetch with a request to this donor."""
        self.move(FetchState.REQUESTED)
        self.donor, self.intake, self.bytes_taken = donor, None, 0
        self.began = self._moved = now

    def begin_intake(self, intake: SnapshotIntake) -> None:
        """Begin to receive."""
        self.move(FetchState.RECEIVING)
        self.intake = intake

    def moved(self, bytes_taken: int, now: float) -> None:
        """Count what the donor has sent."""
        self._moved = now
        self.bytes_taken += bytes_taken

    def begin_adoption(self, adoption: Adoption) -> None:
        """Begin to catch up: all has come, and the received snapshot is handed over."""
        self.move(FetchState.CATCHING_UP)
        self.intake, self.adoption = None, adoption

    def overdue(self, now: float) -> Origin | None:
        """Return the donor if it still has to send and has sent nothing for two failure timeouts."""
        coming = self.state in (FetchState.REQUESTED, FetchState.RECEIVING)
        return self.donor if coming and now - self._moved > 2 * self._timing.failure_timeout_s else None

    def rest(self, until: float) -> None:
        """Ask no donor until then."""
        self._resting_until = until

    def end(self, now: float, *, avoid_s: float = 0.0) -> None:
        """End the fetch without success; the donor is not asked again for `avoid_s`."""
        self.move(FetchState.IDLE)
        if self.donor is not None and avoid_s:
            self._avoid[self.donor] = now + avoid_s
        self._avoid = {donor: until for donor, until in self._avoid.items() if until > now}
        for part in (self.intake, self.adoption):
            if part is not None:
                part.discard()
        self.donor = self.intake = self.adoption = None

    def taken(self) -> None:
        """End the fetch with success: the snapshot is this node's replica now."""
        self.move(FetchState.IDLE)
        self.donor = self.intake = self.adoption = None


# ----------------------------------------------------------------------------
# From the need of a snapshot to its installation (VIEWS.md, 21).


TAIL_PER_CAPACITY: Final = 4  # a donor's log may be larger than the joiner's


class SnapshotFetch:
    """Fetches one snapshot at a time."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        *,
        joining: JoinProgress,
        node: Node,
        ring_life: RingLife,
        given: OwnContribution,
        repair: Repair,
        scanner: SliceScanner,
        server: SnapshotServer,
        counters: Counters,
        out: Outbound,
    ) -> None:
        self.taking = FetchProgress(cluster.timing)
        self._cluster = cluster
        self._state = state
        self._joining = joining
        self._node = node
        self._ring_life = ring_life
        self._given = given
        self._repair = repair
        self._scanner = scanner
        self._server = server
        self._counters = counters
        self._out = out
        self._behind_since: float | None = None  # in a dense ring: others have what this node lacks

    def tick(self, now: float, *, full: bool) -> None:
        """Ask for a snapshot if one is needed; give up on a donor that has stopped. `full`: the log has no
        room for what comes next.
        """
        slow = self.taking.overdue(now)
        if slow is not None:  # a new link begins anew, without what may still come on this one
            words = f"{self._cluster.name_of(slow)} has sent nothing of its snapshot for two failure timeouts"
            self._out.emit(Drop(slow, RejectCode.SLOW, words))
            self.taking.end(now, avoid_s=self._cluster.timing.failure_timeout_s)
        if self.taking.donor is not None:
            return
        if self._node.repairing or self._ring_life.state in IN_STEP:
            return
        alone = len(self._cluster.membership.view.members) < 2
        if self._node.quarantined and (
            alone or now - self._node.quarantined_at > self._cluster.timing.gone_s
        ):
            self._abandon()
            return
        if not self._joining.passed:
            return
        beyond = self._beyond_replay()
        if self._state.spec.dense and self._joining.ready and not self._waited_for_result(beyond, now):
            beyond = set()
        full = full and not self._joining.ready
        if not (self._node.quarantined or full or beyond):
            self.taking.need_none()
            return
        donor = self.taking.choose(
            self._cluster.peers,
            self._cluster.membership.view,
            self._state,
            beyond=beyond,
            anyway=self._node.quarantined,
            now=now,
        )
        if donor is not None and donor.credit > 0:
            self.taking.ask(donor.origin, now)
            self._out.send_message(donor, SnapshotRequest(view=self._cluster.membership.view.number))
        elif self.taking.hopeless(now) and not self._server.serving and not self._node.ready:
            self._abandon()

    def _waited_for_result(self, beyond: set[Origin], now: float) -> bool:
        """Return whether a failure timeout has passed without the last round's sums: in a dense ring others
        send them to a member that was cut off, so it does not ask for all the weights before.
        """
        if not beyond or self._behind_since is None:
            self._behind_since = now if beyond else None
        since = self._behind_since
        return since is not None and now - since > self._cluster.timing.failure_timeout_s

    def _beyond_replay(self) -> set[Origin]:
        """Return the origins of which a linked member has applied what this node lacks and no linked log
        holds. Only members serve snapshots: claims of others must not keep this node from one.
        """
        frontier, peers = self._state.frontier, self._cluster.peers.values()
        repair, beyond, view = self._repair, set(), self._cluster.membership.view
        for peer in (each for each in peers if each.origin in view):
            for origin, row in peer.ahead.items():
                applied = frontier.sequence(origin)
                if row.sequence > applied and not any(
                    other.holds(origin, applied) and not repair.has_trimmed(origin, other.origin, applied)
                    for other in peers
                ):
                    beyond.add(origin)
        return beyond

    def _abandon(self) -> None:
        if self._node.quarantined:  # only memory is damaged: what is on disk is not given up
            words = "no member can give a snapshot that has all that this node had applied"
            if self._node.checkpoint_found:
                words += "; after a restart it continues from its checkpoint"
            else:
                words += ", and there is no usable checkpoint; after a restart it begins anew"
            self._out.emit(Shutdown(words, again=True))
            return
        lost = self.taking.least_loss
        self.taking.need_none()
        self._counters.lost_updates += lost
        words = (
            f"{lost} updates that only this node had applied are lost: no log holds them any "
            "more, and no linked node has them. After a restart this node joins anew"
        )
        self._out.emit(LogEvent("abandoned", words))
        self._out.emit(Shutdown(words, again=True, abandon=True))

    def begin(self, peer: Peer, start: SnapshotStart, now: float) -> None:
        """Take in the donor's announcement; PeerError if it is impossible."""
        if peer.origin != self.taking.donor:
            return  # given up meanwhile, as what follows
        if self.taking.state is not FetchState.REQUESTED:
            raise PeerError(RejectCode.SNAPSHOT, "a snapshot began before the end of another")
        rows = {Origin(row.node, row.incarnation): row for row in start.rows}
        self._state.check_origins(rows)
        if not self._state.fits(start.rows, start.digest):
            raise PeerError(RejectCode.SNAPSHOT, "the digest of a snapshot is not that of its frontier")
        made = self._given.made(self._state)
        if self._cluster.me in rows and rows[self._cluster.me].sequence > made:
            raise PeerError(
                RejectCode.SNAPSHOT, f"a snapshot holds more updates of this node than the {made} it made"
            )
        if len(rows) + (self._cluster.me not in rows) > ORIGINS_MAX:
            raise PeerError(
                RejectCode.ORIGINS, f"a run has at most {ORIGINS_MAX} origins, this node would be one more"
            )
        place = contradicted_by_rows(self._state, start.rows)
        if place is not None:
            raise PeerError(RejectCode.SNAPSHOT, self._contradicted(peer.origin, place, now))
        spec, log = self._state.spec, self._state.log
        self.taking.begin_intake(
            SnapshotIntake(
                spec.coordinates,
                spec.key,
                start.rows,
                start.digest,
                log=log,
                tail_bytes_max=TAIL_PER_CAPACITY * log.capacity,
                bounded=not spec.dense,
                owners=spec.owners,
            )
        )
        self.taking.moved(0, now)

    def take(self, peer: Peer, piece: SnapshotCover | SnapshotChunk | SnapshotTail, now: float) -> None:
        """Take in the next piece."""
        if peer.origin != self.taking.donor:
            return
        if self.taking.intake is None:
            raise PeerError(RejectCode.SNAPSHOT, "a piece of a snapshot came before its beginning")
        if isinstance(piece, SnapshotChunk):
            self.taking.intake.chunk(piece.body)
        elif isinstance(piece, SnapshotCover):
            self.taking.intake.cover(piece.body)
        else:
            self.taking.intake.tail(piece.body)
        self.taking.moved(len(piece.body), now)

    def end(self, peer: Peer, end: SnapshotEnd, now: float) -> bool:
        """Check the whole snapshot, or note that the donor has none; True if it was installed."""
        if peer.origin != self.taking.donor:
            return False
        if self.taking.state is FetchState.CATCHING_UP:
            raise PeerError(RejectCode.SNAPSHOT, "a snapshot ended twice")
        if end.reason:
            self.taking.end(now, avoid_s=self._cluster.timing.turn_s)
            return False
        intake = self.taking.intake
        if intake is None:
            raise PeerError(RejectCode.SNAPSHOT, "a snapshot ended before its beginning")
        intake.end(end.tail)
        if self._state.lost_by({Origin(row.node, row.incarnation): row.sequence for row in intake.rows}):
            self.taking.end(
                now, avoid_s=self._cluster.timing.turn_s
            )  # its STATUS has promised more: ask again
            return False
        if self._has_overtaken(intake):
            self.taking.end(now)
            return False
        place = contradicted_by(self._state, intake)
        if place is not None:
            raise PeerError(RejectCode.SNAPSHOT, self._contradicted(peer.origin, place, now))
        self.taking.begin_adoption(Adoption(self._state, intake))
        return self.turn(now)

    def _has_overtaken(self, intake: SnapshotIntake) -> bool:
        """Return whether, in a dense ring, this node got a round's result meanwhile and is where the snapshot
        is.
        """
        if not self._state.spec.dense or self._node.quarantined:
            return False
        return all(row.sequence <= self._state.frontier.sequence(RING) for row in intake.rows)

    def turn(self, now: float) -> bool:
        """Catch up one piece of a whole snapshot; True if it was installed."""
        donor, adoption = self.taking.donor, self.taking.adoption
        if donor is None or adoption is None:
            return False
        if adoption.overtaken:  # this node became READY without it, and trims its log
            self.taking.end(now, avoid_s=self._cluster.timing.turn_s)
            return False
        if donor not in self._cluster.membership.view:  # others may count on a STATUS with this view
            self.taking.end(now)
            return False
        try:
            caught_up = adoption.turn()
        except LookupError as error:
            self._out.emit(Alert(f"a snapshot could not be taken: {error}"))
            self.taking.end(now)
            self.taking.rest(now + self._cluster.timing.gone_s)  # another one would fare no better
            return False
        except ContradictionError as error:
            self._contradicted(donor, error.place, now, what=error.what)
            self.taking.end(now, avoid_s=self._cluster.timing.gone_s)
            return False
        if caught_up:
            self._finish(donor, adoption)
        return caught_up

    def _finish(self, donor: Origin, adoption: Adoption) -> None:
        frontier = self._state.frontier
        sequence, number = frontier.sequence(RING), frontier.round
        wrong = adoption.finish(damaged=self._node.quarantined)
        if 0 < sequence < frontier.sequence(RING) and number >= frontier.round:
            words = f"round {number} as completed here is discarded: the others repeated it without this node"
            self._out.emit(LogEvent("given up", words))
        self._server.replaced()
        self.taking.taken()
        if wrong:
            self._out.emit(LogEvent("mended", wrong))
        self._counters.snapshots_taken += 1
        self._counters.reapplied += adoption.applied_again
        words = f"took a snapshot from {self._cluster.name_of(donor)}"
        if adoption.applied_again:
            words += f" and applied {adoption.applied_again} updates again that it lacked"
        self._out.emit(LogEvent("snapshot taken", words, donor.node))
        self._node.release()
        self._out.emit(Reload())

    def _contradicted(self, donor: Origin, place: Place, now: float, *, what: str = "digest") -> str:
        """Alert that this node or the snapshot is wrong; the scrub shows whether it is this node."""
        origin, sequence = place
        who = self._cluster.name_of(origin)
        donor_name = self._cluster.name_of(donor)
        words = f"this node and {donor_name}'s snapshot differ in their {what} of {who} at update {sequence}"
        self._out.emit(Alert(f"{words}: it is refused, and the weights here are looked at anew"))
        self._scanner.scrub_soon(now)
        return words

    def refused(self, peer: Origin, now: float) -> None:
        """End the fetch of an impossible snapshot: `peer` is not asked again before its own scrub has come
        round. A snapshot that has come whole was right, whatever its donor sends then.
        """
        if self.taking.donor == peer and self.taking.state is not FetchState.CATCHING_UP:
            self.taking.end(now, avoid_s=self._cluster.timing.gone_s)

    def forget(self, peer: Peer, now: float) -> None:
        """End the fetch from `peer`, whose link is gone, unless all has come."""
        all_is_here = self.taking.state is FetchState.CATCHING_UP
        if self.taking.donor == peer.origin and not all_is_here:
            self.taking.end(now)
