"""The replica: the one place where replication decides anything.

`handle(event, now)` takes what happened and returns what to do; it alone changes the weights, the frontier,
the log and the cursors. No sockets, no clock of its own, no randomness: the daemon and a simulator run the
same code. Joining by snapshot, agreed views and eviction are not here; past the log's budget a laggard is
told GAP and must say so and stop.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alarm, Deliver, Drop, Effect, Halt, Record, ReportDrained, Send
from p2psgd.core.events import (
    Event,
    GapReceived,
    LinkClosed,
    LinkDrained,
    LinkEvent,
    LinkOpened,
    NeedReceived,
    NodeStopping,
    OwnUpdateMade,
    StatusReceived,
    TimePassed,
    UpdateReceived,
)
from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.lattice import Lattice
from p2psgd.core.log import UpdateLog
from p2psgd.core.peer import CREDIT_BYTES, Cursor, Peer
from p2psgd.core.repair import Repair
from p2psgd.core.run_spec import RunSpec
from p2psgd.errors import PeerError
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, link_limits, pack_frame
from p2psgd.wire.messages import ORIGINS_MAX, Gap, Goodbye, Status, pack_message
from p2psgd.wire.update import UpdateHeader, pack_update, parse_update

STATUS_PER_PATIENCE: Final = (
    5  # acknowledgements, and with them signs of life, come five times in one patience
)
STATUS_APPLIED_BYTES: Final = 256 * 1024  # ... and after this much was applied from one peer,
STATUS_APPLIED_UPDATES: Final = 64  # or so many updates
OWN_LAG_MAX: Final = (
    512  # own mini-batches that even the fastest peer has not acknowledged; then the trainer waits
)
SILENCE_PER_PATIENCE: Final = 4  # a link on which nothing came for so long is closed
U64_MODULUS: Final = 2**64


class Replica:
    """One node's full copy of the weights and all it knows about who has applied what."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        me: Origin,
        coordinates: NDArray[np.int32],
        patience_s: float = 5.0,
        log_budget_bytes: int = 256 * 1024 * 1024,
        credit_bytes: int = CREDIT_BYTES,
        recorded: bool = False,
    ) -> None:
        """Take over `coordinates` int32 (P,), the run's initial ones; nobody else may write them from now
        on. `credit_bytes`: what may be on its way through one link. `recorded`: order Record for every
        update applied, own and peers'.
        """
        frame_bytes_max = link_limits(spec.weights)[FrameType.UPDATE]
        self.spec = spec
        self.me = me
        self.patience_s = patience_s
        self.lattice = Lattice(coordinates, key=spec.key)
        self.frontier = Frontier()
        self.log = UpdateLog(budget_bytes=max(log_budget_bytes, 4 * frame_bytes_max))
        self.peers: dict[Origin, Peer] = {}
        self.names: dict[int, str] = {}
        self.mini_batches: dict[int, int] = {}
        self.updates_applied = 0
        self.duplicates = 0
        self.indices_sent = 0
        self.update_bytes_sent = 0
        self.acknowledged_max = 0  # own updates that at least one peer has acknowledged
        self.loop_lag_ms = 0
        self._credit_bytes = credit_bytes
        self._recorded = recorded
        # (mini-batch, its last update so far) of own updates; one mini-batch may make many
        self._own_mini_batches: deque[tuple[int, int]] = deque(maxlen=OWN_LAG_MAX + 1)
        self._said: tuple[bytes, int] | None = None  # what the STATUS frame last packed says,
        self._status = b""  # and that frame
        self._repair = Repair(patience_s=patience_s)
        self._effects: list[Effect] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at `now` (seconds, monotonic) and return what is to be done, in order."""
        self._effects = []
        match event:
            case OwnUpdateMade():
                self._make_own(event)
            case LinkOpened():
                self._open_link(event, now)
            case LinkClosed():
                self.peers.pop(event.peer, None)
                self._repair.forget(event.peer)
            case TimePassed():
                self._pass_time(now)
            case NodeStopping():
                self._say_goodbye()
            case _:
                peer = self.peers.get(event.peer)
                if peer is not None:  # else it arrived after its link was closed
                    self._hear(peer, event, now)
        return self._effects

    def _hear(self, peer: Peer, event: LinkEvent, now: float) -> None:
        if not isinstance(event, LinkDrained):
            peer.heard = now
        try:
            match event:
                case UpdateReceived():
                    self._receive_update(peer, event.body, now)
                case StatusReceived():
                    self._receive_status(peer, event, now)
                case NeedReceived():
                    self._serve(peer, event)
                case GapReceived():
                    self._repair.gap(event.origin, peer.origin, event.floor)
                case LinkDrained():
                    peer.credit, peer.draining = self._credit_bytes, False
                    self._push(peer)
        except PeerError as error:
            self._effects.append(Drop(peer.origin, error.reason, str(error)))

    @property
    def sequence(self) -> int:
        """Number of own updates so far."""
        return self.frontier.sequence(self.me)

    def lag(self, peer: Peer) -> int:
        """How many of our own updates a peer has not acknowledged."""
        return self.sequence - peer.has(self.me)

    def congested(self, now: float) -> bool:
        """Every peer that follows us is far behind: the network or the peers carry less than we make.

        Making more would only make it staler, and stale enough updates diverge. One slow peer is not enough,
        and a peer that has yet to be told the past, or has stopped acknowledging, does not count.
        """
        following = [
            peer
            for peer in self.peers.values()
            if peer.caught_up and now - peer.acknowledged < self.patience_s
        ]
        return bool(following) and all(map(self._is_far_behind, following))

    def _is_far_behind(self, peer: Peer) -> bool:
        """It lacks updates of more than OWN_LAG_MAX of our mini-batches."""
        made = self._own_mini_batches
        return len(made) == made.maxlen and peer.has(self.me) < made[0][1]

    # -- own updates

    def _make_own(self, event: OwnUpdateMade) -> None:
        header = UpdateHeader(
            *self.me,
            sequence=self.sequence + 1,
            digest=self._digest_after(self.me, event.words, event.step),
            mini_batch=event.mini_batch,
            step=event.step,
            count=len(event.words),
        )
        frame = pack_frame(FrameType.UPDATE, pack_update(header, event.payload))
        self._apply(header, event.words, frame)
        if self._own_mini_batches and self._own_mini_batches[-1][0] == event.mini_batch:
            self._own_mini_batches.pop()
        self._own_mini_batches.append((event.mini_batch, self.sequence))
        self.indices_sent += len(event.words)
        self.update_bytes_sent += len(frame)
        for peer in self.peers.values():
            self._push(peer)

    def _digest_after(self, origin: Origin, words: NDArray[np.uint32], step: int) -> int:
        before = self.frontier.digest(origin)
        return (before + codec.digest_words(words, step, self.spec.key)) % U64_MODULUS

    def _apply(self, header: UpdateHeader, words: NDArray[np.uint32], frame: bytes) -> None:
        """Log, weights, frontier: the whole of an update that has passed every check."""
        origin = Origin(header.node, header.incarnation)
        self.log.append(origin, header.sequence, frame)
        if self._recorded:
            self._effects.append(Record(frame))
        contribution = header.digest - self.frontier.digest(origin)  # checked: what the header says is so
        warning = self.lattice.apply(words, header.step, contribution)
        self.frontier.advance(origin, header.sequence, header.digest)
        if header.mini_batch > self.mini_batches.get(header.node, 0):
            self.mini_batches[header.node] = header.mini_batch
        if warning is not None:
            words_of_it = warning.describe(self.spec)
            self._effects.append(Halt(words_of_it) if warning.fatal else Alarm(words_of_it))

    # -- what peers say

    def _receive_update(self, peer: Peer, body: bytes | bytearray, now: float) -> None:
        header, payload = parse_update(body, self.spec.weights)
        origin = Origin(header.node, header.incarnation)
        applied = self.frontier.sequence(origin)
        if header.sequence <= applied:
            self.duplicates += 1
            return
        if origin == self.me:
            raise PeerError(
                "identity",
                f"update {header.sequence} bears this node's own id, but it has made only {applied}",
            )
        if header.sequence > applied + 1:
            self._ask(origin, header.sequence - 1, peer, now)
            return
        room = ORIGINS_MAX - (self.me not in self.frontier)  # one row is this node's own
        if origin not in self.frontier and len(self.frontier) >= room:
            raise PeerError("origins", f"a run has at most {ORIGINS_MAX} origins, this would be one more")
        words = codec.decode(payload, header.count, self.spec.weights)
        if self._digest_after(origin, words, header.step) != header.digest:
            self._effects.append(
                Alarm(f"update {header.sequence} of {self.name_of(origin)} does not fit its digest")
            )
            raise PeerError(
                "digest", f"update {header.sequence} of {self.name_of(origin)} does not fit its digest"
            )
        frame = pack_frame(FrameType.UPDATE, bytes(body))
        self._apply(header, words, frame)
        self.updates_applied += 1
        if origin == peer.origin:
            peer.brought = now
        self._effects.append(Deliver(body))
        peer.applied_bytes += len(frame)
        peer.applied_updates += 1
        if peer.applied_bytes >= STATUS_APPLIED_BYTES or peer.applied_updates >= STATUS_APPLIED_UPDATES:
            self._send_status(peer, now)

    def _receive_status(self, peer: Peer, event: StatusReceived, now: float) -> None:
        first, acknowledged = peer.status is None, peer.has(self.me)
        peer.status = status = {}
        peer.loop_lag_ms = event.loop_lag_ms
        for row in event.rows:
            origin = Origin(row.node, row.incarnation)
            status[origin] = row.sequence
            applied = self.frontier.sequence(origin)
            if origin == peer.origin and row.sequence <= applied:
                peer.brought = now
            if row.sequence == applied and row.digest != self.frontier.digest(origin):
                who = self.name_of(origin)
                words = f"{peer.name} and this node differ in their digest of {who} at update {applied}"
                self._effects.append(Alarm(words))
                raise PeerError("digest", words)
            if origin == self.me and row.sequence > applied:
                raise PeerError(
                    "identity",
                    f"{peer.name} has {row.sequence} updates of this node, which made only {applied}",
                )
            if row.sequence > applied and not self._expected_from_origin(origin, now):
                self._ask(origin, row.sequence, peer, now)
        if first or peer.has(self.me) > acknowledged:
            peer.acknowledged = now
        self.acknowledged_max = max(self.acknowledged_max, peer.has(self.me))
        peer.caught_up |= not self._is_far_behind(peer)
        if first:
            peer.cursors[self.me] = Cursor(next=peer.has(self.me) + 1, last=None)
        own = peer.cursors[self.me]
        if own.parked and peer.has(self.me) >= own.parked:
            own.next, own.parked = peer.has(self.me) + 1, 0
        self._push(peer)

    def _expected_from_origin(self, origin: Origin, now: float) -> bool:
        """The origin itself is linked, lively and holds it: it sends what we lack without being asked.

        Lively is who brings something: one that only says that it is ahead may believe we have it.
        """
        direct = self.peers.get(origin)
        if direct is None or now - direct.brought >= self.patience_s:
            return False
        return not self._repair.has_gap(origin, origin, self.frontier.sequence(origin))

    def _ask(self, origin: Origin, last: int, peer: Peer, now: float) -> None:
        """Ask `peer` for the updates of `origin` up to `last`, if it is the one to ask and has room."""
        if peer.credit > 0:
            need = self._repair.missing(origin, last, peer, frontier=self.frontier, peers=self.peers, now=now)
            if need is not None:
                self._send(peer, pack_message(need))

    # -- links

    def _open_link(self, event: LinkOpened, now: float) -> None:
        for older in [origin for origin in self.peers if origin.node == event.peer.node]:
            del self.peers[older]
        peer = Peer(event.peer, event.name, heard=now, brought=now, credit=self._credit_bytes)
        self.peers[event.peer] = peer
        self.names[event.peer.node] = event.name
        self._send_status(peer, now)

    def _serve(self, peer: Peer, event: NeedReceived) -> None:
        last = min(event.last, self.frontier.sequence(event.origin))
        if event.first <= last:
            follow = event.origin == self.me
            peer.cursors[event.origin] = Cursor(next=event.first, last=None if follow else last)
            self._push(peer)

    def _push(self, peer: Peer) -> None:
        """Send along every cursor while there is credit."""
        for origin, cursor in list(peer.cursors.items()):
            if cursor.parked:
                continue
            end = self.frontier.sequence(origin) if cursor.last is None else cursor.last
            while cursor.next <= end and peer.credit > 0:
                frame = self.log.frame(origin, cursor.next)
                if frame is None:
                    floor = self.log.floor(origin)
                    gap = Gap(node=origin.node, incarnation=origin.incarnation, floor=floor)
                    self._send(peer, pack_message(gap))
                    cursor.parked = floor
                    if cursor.last is not None:
                        del peer.cursors[origin]
                    break
                self._send(peer, frame)
                cursor.next += 1
            else:
                if cursor.last is not None and cursor.next > cursor.last:
                    del peer.cursors[origin]

    def _send(self, peer: Peer, frame: bytes) -> None:
        self._effects.append(Send(peer.origin, frame))
        peer.credit -= len(frame)
        if peer.credit <= 0 and not peer.draining:
            peer.draining = True
            self._effects.append(ReportDrained(peer.origin))

    def _send_status(self, peer: Peer, now: float) -> None:
        if peer.credit > 0:
            self._send(peer, self._pack_status())
            peer.status_due = now + self.patience_s / STATUS_PER_PATIENCE
            peer.applied_bytes = peer.applied_updates = 0

    def _pack_status(self) -> bytes:
        """The STATUS frame; every peer gets the same one as long as nothing changes."""
        said = self.frontier.packed(), self.loop_lag_ms
        if said != self._said:
            self._said = said
            self._status = pack_message(Status(frontier=said[0], loop_lag_ms=said[1]))
        return self._status

    def _say_goodbye(self) -> None:
        """The last acknowledgement, so that no peer waits for it, and the farewell."""
        for peer in self.peers.values():
            self._send(peer, self._pack_status())
            self._send(peer, pack_message(Goodbye(sequence=self.sequence)))

    def _pass_time(self, now: float) -> None:
        for peer in self.peers.values():
            silent_s = now - peer.heard
            if silent_s > SILENCE_PER_PATIENCE * self.patience_s:
                self._effects.append(
                    Drop(peer.origin, "silent", f"nothing came from {peer.name} for {silent_s:.0f} s")
                )
            elif now >= peer.status_due:
                self._send_status(peer, now)
        hopeless = self._repair.hopeless(self.frontier, self.peers, now)
        if hopeless is not None:
            origin, floor = hopeless
            first, who = self.frontier.sequence(origin) + 1, self.name_of(origin)
            words = (
                f"updates {first} to {floor} of {who} are in nobody's log any more, so this node "
                "cannot catch up: start the run again, or give every node a larger --log-budget"
            )
            self._effects.append(Halt(words))

    def name_of(self, origin: Origin) -> str:
        """What people call this origin's node."""
        return self.names.get(origin.node, f"{origin.node:016x}")
