"""Receiving: updates and acknowledgements of peers are checked, applied and asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Alert, Deliver, Persist, Shutdown
from p2psgd.core.events import PeerStatus
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.metrics import Counters, Tally
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.retention import TRIM_TO, Retention
from p2psgd.core.ring.contribution import OwnContribution
from p2psgd.core.ring.rounds import IN_STEP, RingLife
from p2psgd.core.send import Congestion, LogSender, Outbound, Repair
from p2psgd.core.state import State, next_header
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import ORIGINS_MAX, ConfirmedRow, FrontierRow
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.update import (
    OwnUpdateMade,
    UpdateHeader,
    decode_update,
    pack_update,
    parse_update,
    without_cover,
)

# ----------------------------------------------------------------------------
# The one way by which an update that has passed every check is applied, own or a peer's.


class Applier:
    """Changes the state as a whole, has that recorded, and gives peers' updates to the trainer."""

    def __init__(self, state: State, *, out: Outbound, tally: Tally, delivers_own: bool) -> None:
        """`delivers_own`: the node's own updates are news to its trainer too."""
        self._state = state
        self._delivers_own = delivers_own
        self._out = out
        self._tally = tally

    def apply(
        self, origin: Origin, header: UpdateHeader, words: NDArray[np.uint32], body: bytes | bytearray
    ) -> int:
        """Apply the update with this body of an UPDATE frame; return the bytes of the frame. Emit an alert
        for a weight that comes near its limit.
        """
        frame, own = pack_frame(FrameType.UPDATE, bytes(body)), origin == self._state.me
        warning = self._state.apply(origin, header, words, frame)
        if own:
            self._out.emit(Persist(frame))
        if warning is not None:
            sentence = warning.describe(self._state.spec)
            self._out.emit(Shutdown(sentence) if warning.fatal else Alert(sentence))
        self._tally.bytes_applied += len(frame)
        if own:
            self._tally.indices_sent += header.count
            self._tally.own_bytes += len(frame)
        else:
            self._tally.applied += 1
        if not own or self._delivers_own:
            self._out.emit(Deliver(body if header.cover is None else without_cover(header, body)))
        return len(frame)

    def apply_own(self, made: OwnUpdateMade) -> None:
        """Apply what this node's trainer made in asynchronous mode: nobody else is asked."""
        me = self._state.me
        header = next_header(self._state, made, self._state.frontier.at(me))
        self.apply(me, header, made.words, pack_update(header, made.payload))


# ----------------------------------------------------------------------------
# What peers say about updates: taking them, believing what is said of them, asking for what is lacking.


STATUS_APPLIED_BYTES: Final = 256 * 1024  # STATUS also goes out after this much was applied from one peer,
STATUS_APPLIED_UPDATES: Final = 64  # or so many updates


class Receiver:
    """Checks all of what came before anything changes; PeerError for what no honest peer says."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        *,
        node: Node,
        ring_life: RingLife,
        given: OwnContribution,
        applier: Applier,
        retention: Retention,
        log_sender: LogSender,
        repair: Repair,
        congestion: Congestion,
        out: Outbound,
        counters: Counters,
        tally: Tally,
        send_status: Callable[[Peer, float], None],
    ) -> None:
        self.covered: Callable[[Origin, float], None] | None = None  # called in mode `owners`
        self.relays: dict[int, Origin] = {}  # by node: who passed on its latest update
        self._cluster = cluster
        self._state = state
        self._node = node
        self._ring_life = ring_life
        self._given = given
        self._applier = applier
        self._retention = retention
        self._log_sender = log_sender
        self._repair = repair
        self._congestion = congestion
        self._out = out
        self._counters = counters
        self._tally = tally
        self._send_status = send_status
        self._acks_are_new = False  # since the log was last trimmed for want of room
        self._lacked_bytes = 0  # of the update that was held back last, if none was taken since

    # -- updates

    def update(  # noqa: PLR0912 (one branch a check, and a call for each would be taken with every update)
        self, peer: Peer, body: bytes | bytearray, now: float
    ) -> None:
        """Check the body of an UPDATE in the order of SPEC.md, 11: apply it, or count it as a duplicate, or
        ask for what comes before.
        """
        state = self._state
        header, payload = self._parse(body)
        origin = Origin(header.node, header.incarnation)
        applied = state.frontier.sequence(origin)
        if header.sequence <= applied:
            self._tally.duplicates += 1
            return
        if origin == self._cluster.me:
            self._check_own(header.sequence, body)
        if self._ring_life.state in IN_STEP:
            return  # an answer from before: all members have the same, and it is asked for again
        if not self._make_room(len(body)):
            self._counters.held_back += 1
            return
        if header.sequence > applied + 1:
            self._ask(origin, header.sequence - 1, peer, now)
            return
        if origin not in state.frontier:
            room = ORIGINS_MAX - (self._cluster.me not in state.frontier)  # one row is this node's own
            if len(state.frontier) >= room:
                raise PeerError(
                    RejectCode.ORIGINS, f"a run has at most {ORIGINS_MAX} origins, this would be one more"
                )
        words = decode_update(header, payload, state.spec.coordinates)
        if state.digest_after(origin, words, header.magnitude) != header.digest:
            sentence = f"update {header.sequence} of {self._cluster.name_of(origin)} does not fit its digest"
            self._out.emit(Alert(sentence))
            raise PeerError(RejectCode.DIGEST, sentence)
        if header.cover:
            state.covers.check(origin, header.cover)
        frame_bytes = self._applier.apply(origin, header, words, body)
        self._lacked_bytes = 0
        if self.covered is not None and header.cover:
            self.covered(origin, now)
        self.relays[origin.node] = peer.origin
        if self._log_sender.routes.relays:
            self._log_sender.pass_on(origin, self._cluster.peers.values(), now)
        if origin == peer.origin:
            peer.last_progress = now
        elif self._log_sender.routes.relays:
            return  # its origin wants to know how far this node is
        peer.applied_bytes += frame_bytes
        peer.applied_updates += 1
        if peer.applied_bytes >= STATUS_APPLIED_BYTES or peer.applied_updates >= STATUS_APPLIED_UPDATES:
            self._send_status(peer, now)

    def _parse(self, body: bytes | bytearray) -> tuple[UpdateHeader, memoryview]:
        """Return header and payload; PeerError also for an origin that no node of such a run can be."""
        if self._state.dense:
            raise PeerError(
                RejectCode.ORIGIN, "an update came in a dense ring, whose weights change by rounds alone"
            )
        spec = self._state.spec
        header, payload = parse_update(body, spec.coordinates, owners=spec.owners)
        if header.node == RING.node:
            raise PeerError(
                RejectCode.ORIGIN, "an update is of node 0, which is reserved: no node has that id"
            )
        return header, payload

    def _check_own(self, sequence: int, body: bytes | bytearray) -> None:
        """Raise PeerError for an own update beyond what is applied, unless this node gave exactly these bytes
        to a round.
        """
        given = self._given.part(sequence)
        if given is None:
            made = self._given.made(self._state)
            words = f"update {sequence} bears this node's own id, but it has made only {made}"
            raise PeerError(RejectCode.IDENTITY, words)
        if given.body != body:
            sentence = f"update {sequence} of this node came back other than it was made"
            self._out.emit(Alert(sentence))
            raise PeerError(RejectCode.DIGEST, sentence)

    def _make_room(self, body_bytes: int) -> bool:
        """Return whether a peer's update of this many bytes can be taken, if need be by trimming before the
        next look.
        """
        fits = self._state.log.room(body_bytes)
        if not fits and self._node.ready and self._acks_are_new:
            self._acks_are_new = False
            self._retention.trim(self._cluster.membership.view, TRIM_TO)
            fits = self._state.log.room(body_bytes)
        if not fits:
            self._lacked_bytes = body_bytes
        return fits

    def replaced(self) -> None:
        """Note that a snapshot was taken: what was held back before has come with it."""
        self._lacked_bytes = 0

    def lacks_room(self) -> bool:
        """Return whether the update that found no room last, or if all did an empty one, would find none
        now.
        """
        return not self._state.log.room(self._lacked_bytes)

    # -- STATUS

    def status(self, peer: Peer, status: PeerStatus, now: float) -> None:
        """Remember what a peer has applied, compare digests, ask for what is lacking, send it more (SPEC.md,
        9; VIEWS.md, 19).
        """
        view = self._cluster.membership.view
        if status.cluster_id and view.cluster_id and status.cluster_id != view.cluster_id:
            raise PeerError(
                RejectCode.CLUSTER_ID,
                f"{peer.name} belongs to a run of the same recipe that was founded apart from this node's: "
                "stop one of the two and start it again with an empty --state",
            )
        self._cluster.membership.check_number(status.view)
        self._state.check_origins(status.rows)
        rows, confirming = self._completed(peer, status)
        version = self._state.frontier.version
        # What was compared with the same frontier, and was not beyond it, need not be compared again.
        compared = not status.whole and not peer.ahead and peer.compared == version
        ahead = self._check_rows(peer, status.rows if compared else rows)
        if status.view < peer.view:  # no life goes back
            raise PeerError(RejectCode.VIEW, f"{peer.name} reports view {status.view} after view {peer.view}")
        first, acknowledged = peer.status is None, peer.has(self._cluster.me)
        peer.learn_status(rows, ahead, version)
        peer.confirmed = confirming
        peer.view, peer.ready, peer.loss = status.view, status.ready, status.loss
        # Of others only members are believed, and no more than that they know the view known here.
        believed = peer.origin in view
        own = confirming.get(self._cluster.me.node)
        self._cluster.acks.on_status(
            peer.origin,
            rows,
            status.view,
            confirming if believed else {},
            now,
            view_max=view.number,
            changed=status.confirmed if believed and not status.whole else None,
            news=status.rows,
        )
        self._acks_are_new = True
        self._cluster.membership.on_status(
            peer.origin,
            view=status.view,
            ready=status.ready,
            evict_requests=status.evict_requests,
            hears=own is not None and own.incarnation == self._cluster.me.incarnation,
            now=now,
        )
        if 0 < peer.has(peer.origin) <= self._state.frontier.sequence(peer.origin):
            peer.last_progress = now
        if first or peer.has(self._cluster.me) > acknowledged:
            peer.acknowledged = now
            self._tally.acknowledged = max(self._tally.acknowledged, peer.has(self._cluster.me))
        self._congestion.update(peer)
        self.ask_for_all(peer, now)
        self._log_sender.follow(peer)
        self._log_sender.push(peer, now)

    @staticmethod
    def _completed(
        peer: Peer, status: PeerStatus
    ) -> tuple[Mapping[Origin, FrontierRow], Mapping[int, ConfirmedRow]]:
        """Return the tables of a STATUS, with the rows of the one before if it has only what has changed."""
        confirming: Mapping[int, ConfirmedRow] = {row.node: row for row in status.confirmed}
        if status.whole:
            return status.rows, confirming
        if peer.status is None:
            raise PeerError(RejectCode.MESSAGE, f"the first STATUS of {peer.name} on this link is not whole")
        rows = {**peer.status, **status.rows} if status.rows else peer.status
        confirming = {**peer.confirmed, **confirming} if confirming else peer.confirmed
        if max(len(rows), len(confirming)) > ORIGINS_MAX:
            words = f"{peer.name} reports {len(rows)} origins and {len(confirming)} nodes that it hears"
            raise PeerError(RejectCode.MESSAGE, f"{words}, allowed are {ORIGINS_MAX} of each")
        return rows, confirming

    def _check_rows(self, peer: Peer, status: Mapping[Origin, FrontierRow]) -> dict[Origin, FrontierRow]:
        """Returns the rows that are beyond our frontier."""
        frontier, ahead = self._state.frontier, {}
        for origin, row in status.items():
            applied, digest = frontier.at(origin)
            if row.sequence > applied:
                ahead[origin] = row
            elif row.sequence == applied and row.digest != digest:
                who = self._cluster.name_of(origin)
                words = f"{peer.name} and this node differ in their digest of {who} at update {applied}"
                self._out.emit(Alert(words))
                raise PeerError(RejectCode.DIGEST, words)
        own = ahead.get(self._cluster.me)
        if own is not None and not self._given.agrees(own.sequence, own.digest):
            made = self._given.made(self._state)
            words = f"{peer.name} has {own.sequence} updates of this node, which made only {made}"
            raise PeerError(RejectCode.IDENTITY, words)
        return ahead

    # -- asking

    def ask_for_all(self, peer: Peer, now: float) -> None:
        """Ask a peer for what it has applied and this node has not, as far as that is the one to ask.

        Not while the log has no room for the update that it held back last: all would be sent in vain.
        """
        if self._ring_life.state in IN_STEP or not self._make_room(self._lacked_bytes):
            return
        for origin, row in peer.ahead.items():
            lacking = row.sequence > self._state.frontier.sequence(origin)
            if lacking and not self._expected_unasked(origin, now):
                self._ask(origin, row.sequence, peer, now)

    def _expected_unasked(self, origin: Origin, now: float) -> bool:
        """Return whether a peer that is linked and lively sends what we lack without being asked: the origin
        itself, or the one that relays to us.

        Lively is an origin that brings something: one that only says that it is ahead may believe we have it.
        So is a relay that reports, unless it is ahead: a STATUS comes after the updates before it. Neither is
        waited for longer than a failure timeout: a relay may be cut off from those that have more.
        """
        routes, applied = self._log_sender.routes, self._state.frontier.sequence(origin)
        source = routes.source(origin)
        peer = None if source is None else self._cluster.peers.get(source)
        if source is None or peer is None or peer.barred:
            return False
        failure_timeout_s = self._cluster.timing.failure_timeout_s
        if not routes.relays:
            lively = now - peer.last_progress < failure_timeout_s
        else:
            lively = now - peer.last_seen < failure_timeout_s / 2 and peer.has(origin) <= applied
        if not lively or self._repair.has_trimmed(origin, source, applied):
            return False
        return not self._repair.has_waited(origin, applied, now)

    def _ask(self, origin: Origin, last: int, peer: Peer, now: float) -> None:
        """Ask `peer` for the updates of `origin` up to `last`, if it is the one to ask and has room."""
        frontier = self._state.frontier
        if peer.credit > 0 and peer.trimmed_to(origin) <= frontier.sequence(origin):
            need = self._repair.missing(
                origin, last, peer, frontier=frontier, peers=self._cluster.peers, now=now
            )
            if need is not None:
                self._out.send_message(peer, need)
