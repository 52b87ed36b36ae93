"""Receiving: updates and acknowledgements of peers are checked, applied and asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.context import Parts
from p2psgd.core.effects import Alarm, Deliver, Halt, Record
from p2psgd.core.events import StatusReceived
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.peer import Peer
from p2psgd.core.retention import TRIM_TO
from p2psgd.core.send import Congestion
from p2psgd.core.state import next_header
from p2psgd.errors import PeerError
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import ORIGINS_MAX, FrontierRow
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader, pack_update, parse_update

# ----------------------------------------------------------------------------
# The one way by which an update that has passed every check is applied, own or a peer's.


def apply_update(
    parts: Parts, origin: Origin, header: UpdateHeader, words: NDArray[np.uint32], frame: bytes
) -> None:
    """Change the state as a whole, have it recorded, and say so if a weight comes near its limit."""
    warning = parts.state.apply(origin, header, words, frame)
    parts.tally.bytes_applied += len(frame)
    parts.out.order(Record(frame, own=origin == parts.me))
    if warning is not None:
        sentence = warning.describe(parts.state.spec)
        parts.out.order(Halt(sentence) if warning.fatal else Alarm(sentence))


# ----------------------------------------------------------------------------
# What peers say about updates: taking them, believing what is said of them, asking for what is lacking.


STATUS_APPLIED_BYTES: Final = 256 * 1024  # STATUS also goes out after this much was applied from one peer,
STATUS_APPLIED_UPDATES: Final = 64  # or so many updates


class Receiver:
    """Checks all of what came before anything changes; PeerError for what no honest peer says."""

    def __init__(
        self, parts: Parts, congestion: Congestion, *, send_status: Callable[[Peer, float], None]
    ) -> None:
        self._parts = parts
        self._congestion = congestion
        self._send_status = send_status
        self._acks_are_new = False  # since the log was last trimmed for want of room
        self._lacked_bytes = 0  # of the update that was held back last, if none was taken since

    # -- updates

    def update(self, peer: Peer, body: bytes | bytearray, now: float) -> None:
        """The body of an UPDATE frame: apply it, or count it as a duplicate, or ask for what comes before."""
        parts, state = self._parts, self._parts.state
        header, payload = self._parse(body)
        origin = Origin(header.node, header.incarnation)
        applied = state.frontier.sequence(origin)
        if header.sequence <= applied:
            parts.tally.duplicates += 1
            return
        if origin == parts.me:
            self._check_own(header.sequence, body)
        if parts.in_step:
            return  # an answer from before: all members have the same, and it is asked for again
        if not self._make_room(len(body)):
            parts.counters.held_back += 1
            return
        if header.sequence > applied + 1:
            self._ask(origin, header.sequence - 1, peer, now)
            return
        room = ORIGINS_MAX - (parts.me not in state.frontier)  # one row is this node's own
        if origin not in state.frontier and len(state.frontier) >= room:
            raise PeerError("origins", f"a run has at most {ORIGINS_MAX} origins, this would be one more")
        words = codec.decode(payload, header.count, state.spec.weights)
        if state.digest_after(origin, words, header.step) != header.digest:
            sentence = f"update {header.sequence} of {parts.name_of(origin)} does not fit its digest"
            parts.out.order(Alarm(sentence))
            raise PeerError("digest", sentence)
        frame = pack_frame(FrameType.UPDATE, bytes(body))
        apply_update(parts, origin, header, words, frame)
        self._lacked_bytes = 0
        parts.carriers[origin.node] = peer.origin
        if origin == peer.origin:
            peer.brought = now
        if origin == parts.me:  # the round that it was given to was completed elsewhere
            parts.tally.count_own(header.count, len(frame))
        else:
            parts.tally.applied += 1
            parts.out.order(Deliver(body))
        peer.applied_bytes += len(frame)
        peer.applied_updates += 1
        if peer.applied_bytes >= STATUS_APPLIED_BYTES or peer.applied_updates >= STATUS_APPLIED_UPDATES:
            self._send_status(peer, now)

    def _parse(self, body: bytes | bytearray) -> tuple[UpdateHeader, memoryview]:
        """Header and payload; PeerError also for an origin that no node of such a run can be."""
        if self._parts.state.dense:
            raise PeerError("origin", "an update came in a dense ring, whose weights change by rounds alone")
        header, payload = parse_update(body, self._parts.state.spec.weights)
        if header.node == RING.node:
            raise PeerError("origin", "an update is of node 0, which is reserved: no node has that id")
        return header, payload

    def _check_own(self, sequence: int, body: bytes | bytearray) -> None:
        """Beyond what is applied, only what this node gave to a round can come, byte by byte."""
        parts = self._parts
        given = parts.given.part(sequence) if parts.given is not None else None
        if given is None:
            words = f"update {sequence} bears this node's own id, but it has made only {parts.made}"
            raise PeerError("identity", words)
        if given.body != body:
            sentence = f"update {sequence} of this node came back other than it was made"
            parts.out.order(Alarm(sentence))
            raise PeerError("digest", sentence)

    def _make_room(self, body_bytes: int) -> bool:
        """A peer's update of so many bytes can be taken, if need be by trimming before the next look."""
        parts = self._parts
        fits = parts.budget.room(body_bytes)
        if not fits and parts.ready and self._acks_are_new:
            self._acks_are_new = False
            parts.budget.trim(parts.membership.view, parts.acks, parts.saved, TRIM_TO)
            fits = parts.budget.room(body_bytes)
        if not fits:
            self._lacked_bytes = body_bytes
        return fits

    def replaced(self) -> None:
        """A snapshot was taken: what was held back before has come with it."""
        self._lacked_bytes = 0

    def lacks_room(self) -> bool:
        """The update that found no room last, or if all did an empty one, would find none now."""
        return not self._parts.budget.room(self._lacked_bytes)

    # -- STATUS

    def status(self, peer: Peer, event: StatusReceived, now: float) -> None:
        """What a peer has applied: remember it, compare digests, ask for what is lacking, send it more."""
        parts, view = self._parts, self._parts.membership.view
        if event.founding and view.founding and event.founding != view.founding:
            raise PeerError(
                "founding",
                f"{peer.name} belongs to a run of the same recipe that was founded apart from this node's: "
                "stop one of the two and start it again with an empty --state",
            )
        parts.membership.check_number(event.view)
        parts.state.check_origins(event.rows)
        ahead = self._check_rows(peer, event.rows)
        if event.view < peer.view:  # no life goes back
            raise PeerError("view", f"{peer.name} tells of view {event.view}, and told of {peer.view} before")
        first, acknowledged = peer.status is None, peer.has(parts.me)
        peer.learn_status(event.rows, ahead)
        peer.view, peer.ready, peer.loop_lag_ms = event.view, event.ready, event.loop_lag_ms
        # Of others only members are believed, and no more than that they know the view known here.
        confirmed = event.confirmed if peer.origin in view else []
        parts.acks.hear(
            peer.origin,
            event.rows,
            event.view,
            confirmed,
            now,
            linked=parts.peers,
            view_max=view.number,
        )
        self._acks_are_new = True
        parts.membership.hear_status(
            peer.origin,
            view=event.view,
            ready=event.ready,
            unwanted=event.unwanted,
            hears=any((row.node, row.incarnation) == parts.me for row in event.confirmed),
            now=now,
        )
        if 0 < peer.has(peer.origin) <= parts.state.frontier.sequence(peer.origin):
            peer.brought = now
        if first or peer.has(parts.me) > acknowledged:
            peer.acknowledged = now
            parts.tally.acknowledged = max(parts.tally.acknowledged, peer.has(parts.me))
        self._congestion.hear(peer)
        self.ask_for_all(peer, now)
        parts.feeder.follow(peer)
        parts.feeder.push(peer, now)

    def _check_rows(self, peer: Peer, status: Mapping[Origin, FrontierRow]) -> dict[Origin, FrontierRow]:
        """Returns the rows that are beyond our frontier."""
        parts, frontier, ahead = self._parts, self._parts.state.frontier, {}
        for origin, row in status.items():
            applied, digest = frontier.at(origin)
            if row.sequence > applied:
                ahead[origin] = row
            elif row.sequence == applied and row.digest != digest:
                who = parts.name_of(origin)
                words = f"{peer.name} and this node differ in their digest of {who} at update {applied}"
                parts.out.order(Alarm(words))
                raise PeerError("digest", words)
        own = ahead.get(parts.me)
        if own is not None and not (parts.given and parts.given.agrees(own.sequence, own.digest)):
            words = f"{peer.name} has {own.sequence} updates of this node, which made only {parts.made}"
            raise PeerError("identity", words)
        return ahead

    # -- asking

    def ask_for_all(self, peer: Peer, now: float) -> None:
        """Ask a peer for what it has applied and this node has not, as far as that is the one to ask.

        Not while the log has no room for the update that it held back last: all would be sent in vain.
        """
        if self._parts.in_step or not self._make_room(self._lacked_bytes):
            return
        for origin, row in peer.ahead.items():
            lacking = row.sequence > self._parts.state.frontier.sequence(origin)
            if lacking and not self._expected_from_origin(origin, now):
                self._ask(origin, row.sequence, peer, now)

    def _expected_from_origin(self, origin: Origin, now: float) -> bool:
        """The origin itself is linked, lively and holds it: it sends what we lack without being asked.

        Lively is who brings something: one that only says that it is ahead may believe we have it.
        """
        parts = self._parts
        direct = parts.peers.get(origin) if parts.feeder.unasked else None
        if direct is None or direct.barred or now - direct.brought >= parts.timing.patience_s:
            return False
        return not parts.repair.has_gap(origin, origin, parts.state.frontier.sequence(origin))

    def _ask(self, origin: Origin, last: int, peer: Peer, now: float) -> None:
        """Ask `peer` for the updates of `origin` up to `last`, if it is the one to ask and has room."""
        parts, frontier = self._parts, self._parts.state.frontier
        if peer.credit > 0 and peer.floor(origin) <= frontier.sequence(origin):
            need = parts.repair.missing(origin, last, peer, frontier=frontier, peers=parts.peers, now=now)
            if need is not None:
                parts.out.say(peer, need)


# ----------------------------------------------------------------------------
# An update that this node's trainer made in asynchronous mode.


def apply_own(parts: Parts, made: OwnUpdateMade) -> None:
    """Nobody else is asked: it is part of the replica from now on."""
    header = next_header(parts.state, made, parts.state.frontier.at(parts.me))
    frame = pack_frame(FrameType.UPDATE, pack_update(header, made.payload))
    apply_update(parts, parts.me, header, made.words, frame)
    parts.tally.count_own(header.count, len(frame))
