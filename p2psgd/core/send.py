"""Sending: what each peer is given of the log, what is asked for again, and when the trainer must wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from p2psgd.core.effects import Alert, Effect, ReportDrained, Send, SendFloats, Yield
from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.node_state import DAMAGED, Node
from p2psgd.core.peer import Cursor, Peer
from p2psgd.core.state import State
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.messages import ORIGINS_MAX, Fetch, Message, Trimmed, pack_message
from p2psgd.wire.reject import PeerError
from p2psgd.wire.update import parse_update

# ----------------------------------------------------------------------------
# What a replica orders while it handles one event, and what its links may still be given.


CREDIT_BYTES: Final = (
    1024 * 1024
)  # 80 ms of a 100 Mbit/s link: enough to keep it full between two turns of the loop


class Outbound:
    """Collects effects in order; spends a peer's credit with every frame."""

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self._effects: list[Effect] = []
        self._turn_is_wanted = self._turn_is_ordered = False

    def emit(self, effect: Effect) -> None:
        """Collect an effect."""
        self._effects.append(effect)

    def order_turn(self) -> None:
        """Ask the shell for one Resumed in the next turn of the loop."""
        self._turn_is_wanted = True

    def turn_passed(self) -> None:
        """Note that Resumed has come."""
        self._turn_is_wanted = self._turn_is_ordered = False

    def send(self, peer: Peer, frame: bytes) -> None:
        """Send a whole frame to a peer, whatever its credit."""
        self._effects.append(Send(peer.origin, frame))
        self._spend(peer, len(frame))

    def send_floats(self, peer: Peer, head: bytes, numbers: memoryview) -> None:
        """Send a frame whose numbers stay where they are (SendFloats), whatever the peer's credit."""
        self._effects.append(SendFloats(peer.origin, head, numbers))
        self._spend(peer, len(head) + numbers.nbytes)

    def _spend(self, peer: Peer, frame_bytes: int) -> None:
        had_credit = peer.credit > 0
        peer.credit -= frame_bytes
        if had_credit and peer.credit <= 0:
            self._effects.append(ReportDrained(peer.origin))

    def send_message(self, peer: Peer, message: Message) -> None:
        """Send a control message to a peer."""
        self.send(peer, pack_message(message))

    def refill(self, peer: Peer) -> None:
        """Renew the credit of a peer whose link has drained."""
        peer.credit = self.credit_bytes

    def take(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        if self._turn_is_wanted and not self._turn_is_ordered:
            self._turn_is_ordered = True
            self._effects.append(Yield())
        effects, self._effects = self._effects, []
        return effects


# ----------------------------------------------------------------------------
# Sending along cursors: what each peer is given of the log, and of a snapshot, while it has credit.


FRAMES_PER_TURN: Final = 512  # to one peer: a millisecond or two, however small they are


class Routes(Protocol):
    """The ways of updates that nobody has to ask for. `relays`: nodes pass on what others have made."""

    relays: bool

    def origins_for(self, peer: Peer, origins: Iterable[Origin]) -> list[Origin]:
        """Return the origins, `origins` or others, whose updates this node sends this peer unasked."""

    def source(self, origin: Origin) -> Origin | None:
        """Return the peer that sends this node the updates of `origin` unasked; None: nobody does."""


class DirectRoutes:
    """Each node sends its own updates to every peer."""

    relays = False

    def __init__(self, me: Origin) -> None:
        self._own = [me]

    def origins_for(self, peer: Peer, origins: Iterable[Origin]) -> list[Origin]:
        """Return this node."""
        return self._own

    def source(self, origin: Origin) -> Origin | None:
        """Return the origin itself."""
        return origin


class NoRoutes:
    """Nobody sends anything unasked: updates go around a ring."""

    relays = False

    def origins_for(self, peer: Peer, origins: Iterable[Origin]) -> list[Origin]:
        """Return none."""
        return []

    def source(self, origin: Origin) -> Origin | None:
        """Return None."""
        return None


class LogSender:
    """Pushes frames; while the weights are damaged, none leave. By its routes updates go to peers unasked."""

    def __init__(self, state: State, outbound: Outbound, node: Node, routes: Routes) -> None:
        self.routes = routes
        self._node = node
        self._state = state
        self._outbound = outbound

    def serve(self, peer: Peer, need: Fetch, now: float) -> None:
        """Answer a peer that asked for updates: send those that are here, or TRIMMED (SPEC.md, 9)."""
        origin = Origin(need.node, need.incarnation)
        last = min(need.last, self._state.frontier.sequence(origin))
        if need.first <= last:
            follow = origin in self.routes.origins_for(peer, (origin,))
            before = peer.cursors.get(origin)
            if before is not None and before.last is not None:
                last = max(last, before.last)
            peer.replace_cursor(origin, Cursor(next=need.first, last=None if follow else last))
            self.push(peer, now)

    def follow(self, peer: Peer) -> None:
        """Send a peer from now on what the routes say, from where its STATUS shows that it stands."""
        frontier = self._state.frontier
        wanted = self.routes.origins_for(peer, frontier)
        for origin, cursor in list(peer.cursors.items()):
            if cursor.last is None and origin not in wanted:
                peer.drop_cursor(origin)
        for origin in wanted:
            known = peer.cursors.get(origin)
            after = min(peer.has(origin), frontier.sequence(origin))
            if known is None:
                if origin == self._state.me or self._state.log.trimmed_to(origin) <= after:
                    peer.replace_cursor(origin, Cursor(next=after + 1, last=None))
            elif known.last is not None:
                known.last = None
            elif known.parked and after >= known.parked:
                known.next = after + 1
                peer.resume(known)
            elif self.routes.relays and not known.parked:
                known.next = max(known.next, after + 1)

    def follow_all(self, peers: Iterable[Peer], now: float) -> None:
        """Do so for all peers: the view or the links are others than before."""
        if self.routes.relays:
            for peer in peers:
                if peer.status is not None:
                    self.follow(peer)
                    self.push(peer, now)

    def pass_on(self, origin: Origin, peers: Iterable[Peer], now: float) -> None:
        """Send an update that was just applied to those who get it from this node."""
        for peer in peers:
            if origin in peer.cursors:
                self.push(peer, now)

    def bring_up(self, peer: Peer, now: float) -> None:
        """Send a peer now what it lacks of our own updates, though another node relays these to it."""
        me = self._state.me
        has, last = max(peer.has(me), peer.own_sent), self._state.frontier.sequence(me)
        if me not in peer.cursors and self._state.log.trimmed_to(me) <= has < last:
            peer.replace_cursor(me, Cursor(next=has + 1, last=last))
            self.push(peer, now)

    def push(self, peer: Peer, now: float) -> None:
        """Send along every cursor while there is credit, then of the snapshot; of very many small frames some
        now, and more in the next turn.
        """
        if self._node.state in DAMAGED:
            return
        left = FRAMES_PER_TURN
        if peer.feed is not None:
            left -= self._feed(peer, now, most=1)  # however long the log is that comes before the rest
        for origin, cursor in list(peer.cursors.items()):
            if cursor.parked:
                continue
            end = self._state.frontier.sequence(origin) if cursor.last is None else cursor.last
            while cursor.next <= end and peer.credit > 0 and left > 0:
                frame = self._frame(origin, cursor)
                if frame is None:
                    trimmed_to = max(self._state.log.trimmed_to(origin), cursor.next)
                    self._outbound.send_message(
                        peer, Trimmed(node=origin.node, incarnation=origin.incarnation, trimmed_to=trimmed_to)
                    )
                    if cursor.last is None:
                        peer.pause(cursor, trimmed_to)
                    else:
                        del peer.cursors[origin]
                    break
                self._outbound.send(peer, frame)
                peer.own_sent = cursor.next if origin == self._state.me else peer.own_sent
                cursor.next += 1
                left -= 1
            else:
                if cursor.last is not None and cursor.next > cursor.last:
                    del peer.cursors[origin]
        if peer.feed is not None:
            left -= self._feed(peer, now, most=left)
        if left <= 0 and peer.credit > 0:
            self._outbound.order_turn()

    def _frame(self, origin: Origin, cursor: Cursor) -> bytes | None:
        """Return the next frame; None if it is not here. The first is looked at: a peer that refused it
        because memory has changed it here begins there again, and would for ever.
        """
        frame = self._state.log.frame(origin, cursor.next)
        if frame is not None and not cursor.begun:
            cursor.begun = True
            try:
                parse_update(memoryview(frame)[PREFIX.size :], self._state.spec.coordinates)
            except PeerError as error:
                words = f"update {cursor.next} of {origin.node:016x} has changed in the log's memory: {error}"
                self._outbound.emit(Alert(words))
                return None
        return frame

    def _feed(self, peer: Peer, now: float, *, most: int) -> int:
        """Send at most `most` pieces of the snapshot while there is credit; return how many."""
        sent = 0
        while peer.feed is not None and peer.credit > 0 and sent < most:
            piece = peer.feed.take(now)
            if piece is None:
                peer.end_feed()
            else:
                self._outbound.send(peer, piece)
                sent += 1
        return sent


# ----------------------------------------------------------------------------
# Which peer to ask for updates that do not arrive unasked, and when to give up.
#
# One FETCH at a time for each origin, to a peer whose STATUS shows that it is ahead. One that has brought
# nothing for a failure timeout, or has answered TRIMMED, is passed over as long as another is ahead. What no
# peer's log holds any more comes with a snapshot. At most ORIGINS_MAX origins are asked for at once; one more
# takes the place of one that has brought nothing for a failure timeout.


@dataclass(slots=True)
class _Search:
    """The search for what is missing of one origin."""

    asked: Origin | None = None  # whose answer is awaited,
    last: int = 0  # up to this sequence;
    applied: int = 0  # our sequence when progress was last seen,
    since: float = 0.0  # and when that was
    idle: set[Origin] = field(default_factory=set)  # peers that brought nothing when asked
    trimmed: dict[Origin, int] = field(default_factory=dict)  # peers that answered TRIMMED


class Repair:
    """The searches for missing updates, by origin."""

    def __init__(self, *, failure_timeout_s: float) -> None:
        self._failure_timeout_s = failure_timeout_s
        self._searches: dict[Origin, _Search] = {}
        self._waits: dict[Origin, tuple[int, float]] = {}  # our sequence, and since when we wait at it
        self._none_idle_before = 0.0  # no search is given up before then

    def missing(
        self,
        origin: Origin,
        last: int,
        peer: Peer,
        *,
        frontier: Frontier,
        peers: Mapping[Origin, Peer],
        now: float,
    ) -> Fetch | None:
        """Return the FETCH to send to `peer`, which holds `origin` up to `last` or beyond where we do not;
        None if it should not be asked now.
        """
        applied = frontier.sequence(origin)
        search = self._searches.get(origin)
        if search is None:
            if len(self._searches) >= ORIGINS_MAX and not self._give_one_up(now):
                return None
            search = self._searches[origin] = _Search()
        if search.asked is not None and applied < search.last:
            if applied > search.applied:
                search.applied, search.since = applied, now
            if now - search.since < self._failure_timeout_s:
                return None
            search.idle.add(search.asked)
        if search.trimmed.get(peer.origin, 0) > applied:
            return None
        if peer.origin in search.idle:
            if any(self._is_better(other, origin, applied, search) for other in peers.values()):
                return None
            search.idle.clear()
        search.asked, search.last, search.applied, search.since = peer.origin, last, applied, now
        return Fetch(node=origin.node, incarnation=origin.incarnation, first=applied + 1, last=last)

    def _give_one_up(self, now: float) -> bool:
        """Give up a search that has brought nothing for a failure timeout: made-up origins must not fill up
        all the room.
        """
        if now < self._none_idle_before:
            return False  # or each of a thousand rows would look at a thousand searches
        for origin, search in self._searches.items():
            if now - search.since >= self._failure_timeout_s:
                del self._searches[origin]
                return True
        self._none_idle_before = self._failure_timeout_s + min(each.since for each in self._searches.values())
        return False

    @staticmethod
    def _is_better(other: Peer, origin: Origin, applied: int, search: _Search) -> bool:
        trimmed = search.trimmed.get(other.origin, 0) > applied
        return other.holds(origin, applied) and other.origin not in search.idle and not trimmed

    def note_trimmed(self, origin: Origin, peer: Origin, trimmed_to: int) -> None:
        """Note that `peer` no longer holds `origin` up to `trimmed_to`.

        That is believed of its own updates, or if it was asked.
        """
        search = self._searches.get(origin)
        if search is None and origin == peer and len(self._searches) < ORIGINS_MAX:
            search = self._searches[origin] = _Search()
        if search is None or peer not in (origin, search.asked):
            return
        search.trimmed[peer] = trimmed_to
        if search.asked == peer:
            search.asked = None

    def has_trimmed(self, origin: Origin, peer: Origin, applied: int) -> bool:
        """Return whether `peer` has reported that it no longer holds what comes after `applied`."""
        search = self._searches.get(origin)
        return search is not None and search.trimmed.get(peer, 0) > applied

    def has_waited(self, origin: Origin, applied: int, now: float) -> bool:
        """Return whether updates of `origin` have been expected unasked for a failure timeout, and none came:
        the one that is to bring them may not have them, nor a link to anybody who has.
        """
        at, since = self._waits.get(origin, (-1, now))
        if at != applied:
            self._waits[origin] = applied, now
            return False
        return now - since >= self._failure_timeout_s

    def forget(self, peer: Origin) -> None:
        """Note that the link to `peer` is gone: nothing is expected of it, and what it sent is void."""
        for search in self._searches.values():
            search.idle.discard(peer)
            search.trimmed.pop(peer, None)
            if search.asked == peer:
                search.asked = None

    def clean(self, frontier: Frontier, peers: Mapping[Origin, Peer]) -> None:
        """Forget searches for what is found, or what nobody linked has; likewise what is waited for."""
        for origin in list(self._waits):
            if not any(peer.has(origin) > frontier.sequence(origin) for peer in peers.values()):
                del self._waits[origin]
        for origin, search in list(self._searches.items()):
            applied = frontier.sequence(origin)
            wanted = any(peer.has(origin) > applied for peer in peers.values())
            if not wanted and not any(trimmed_to > applied for trimmed_to in search.trimmed.values()):
                del self._searches[origin]


# ----------------------------------------------------------------------------
# Whether this node makes more than even its fastest peer takes; then its trainer should wait.
#
# Making more would only make it staler, and stale enough updates diverge. One slow peer is not enough, and a
# peer that has yet to be sent the past, or has stopped acknowledging, does not count. Counted are
# sends, each of one mini-batch or the sum of several, since one may make many updates.


OWN_LAG_MAX: Final = 512  # own sends that even the fastest peer has not acknowledged; then the trainer waits


class Congestion:
    """Remembers the last OWN_LAG_MAX own sends."""

    def __init__(self, me: Origin) -> None:
        self._me = me
        # (the count of mini-batches with it, its last update so far)
        self._made: deque[tuple[int, int]] = deque(maxlen=OWN_LAG_MAX + 1)

    def made(self, steps: int, sequence: int) -> None:
        """Note that own update `sequence` was made by this step."""
        if self._made and self._made[-1][0] == steps:
            self._made.pop()
        self._made.append((steps, sequence))

    def update(self, peer: Peer) -> None:
        """Judge anew whether a peer follows us, after its STATUS."""
        peer.caught_up |= not self._is_far_behind(peer)

    def is_general(self, peers: Iterable[Peer], since: float) -> bool:
        """Return whether every peer that follows us, having acknowledged more after `since`, is far
        behind.
        """
        following = [peer for peer in peers if peer.caught_up and peer.acknowledged > since]
        return bool(following) and all(map(self._is_far_behind, following))

    def _is_far_behind(self, peer: Peer) -> bool:
        """Return whether a peer lacks updates of more than OWN_LAG_MAX of our sends."""
        return len(self._made) == self._made.maxlen and peer.has(self._me) < self._made[0][1]
