"""Sending along cursors: what each peer is given of the log, and of a snapshot, while it has credit."""

from __future__ import annotations

from typing import Final

from p2psgd.core.effects import Alarm
from p2psgd.core.events import NeedReceived
from p2psgd.core.frontier import Origin
from p2psgd.core.outbound import Outbound
from p2psgd.core.peer import Cursor, Peer
from p2psgd.core.state import State
from p2psgd.errors import PeerError
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.messages import Gap
from p2psgd.wire.update import parse_update

FRAMES_PER_TURN: Final = 512  # to one peer: a millisecond or two, however small they are


class Feeder:
    """Pushes frames; while `silent`, none leave. Own updates go to everybody unasked, unless they go around
    a ring.
    """

    def __init__(self, state: State, outbound: Outbound, *, unasked: bool = True) -> None:
        self.silent = False
        self.unasked = unasked
        self._state = state
        self._outbound = outbound

    def serve(self, peer: Peer, event: NeedReceived, now: float) -> None:
        """A peer asked for updates: send what of them is here, or say GAP."""
        last = min(event.last, self._state.frontier.sequence(event.origin))
        if event.first <= last:
            follow = self.unasked and event.origin == self._state.me
            peer.cursors[event.origin] = Cursor(next=event.first, last=None if follow else last)
            self.push(peer, now)

    def follow(self, peer: Peer) -> None:
        """From now on it gets our own updates, from where its STATUS says that it stands."""
        if not self.unasked:
            return
        me = self._state.me
        own = peer.cursors.get(me)
        if own is None:
            peer.cursors[me] = Cursor(next=peer.has(me) + 1, last=None)
        elif own.parked and peer.has(me) >= own.parked:
            own.next, own.parked = peer.has(me) + 1, 0

    def push(self, peer: Peer, now: float) -> None:
        """Send along every cursor while there is credit, then of the snapshot; of very many small frames some
        now, and more in the next turn.
        """
        if self.silent:
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
                    floor = max(self._state.log.floor(origin), cursor.next)
                    self._outbound.say(
                        peer, Gap(node=origin.node, incarnation=origin.incarnation, floor=floor)
                    )
                    cursor.parked = floor
                    if cursor.last is not None:
                        del peer.cursors[origin]
                    break
                self._outbound.send(peer, frame)
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
        """The next one; None if it is not here. The first is looked at: a peer that refused it because memory
        has changed it here begins there again, and would for ever.
        """
        frame = self._state.log.frame(origin, cursor.next)
        if frame is not None and not cursor.begun:
            cursor.begun = True
            try:
                parse_update(memoryview(frame)[PREFIX.size :], self._state.spec.weights)
            except PeerError as error:
                words = f"update {cursor.next} of {origin.node:016x} has changed in the log's memory: {error}"
                self._outbound.order(Alarm(words))
                return None
        return frame

    def _feed(self, peer: Peer, now: float, *, most: int) -> int:
        """Send of the snapshot while there is credit, at most so many pieces; returns how many."""
        sent = 0
        while peer.feed is not None and peer.credit > 0 and sent < most:
            piece = peer.feed.take(now)
            if piece is None:
                peer.feed = None
            else:
                self._outbound.send(peer, piece)
                sent += 1
        return sent
