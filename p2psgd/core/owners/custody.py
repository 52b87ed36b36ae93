"""The state of owners' rules on its way: to the owners of other weights, and as copies to deputies.

When a view gives a weight to another owner, the one before sends what it knows of it. So that the state of a
killed owner is not lost, each owner sends its deputy, the next owner of the view, a copy in small pieces, one
after the other and again from the beginning. If it leaves the view the deputy gives the copy to the new
owners. What they have not got from anybody begins at zero, as at the start of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import LogEvent
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.ranges import Range
from p2psgd.core.owners.rules.rule import RangeState
from p2psgd.core.peer import Peer
from p2psgd.core.send import Outbound
from p2psgd.wire.frames import RULE_STATE_WEIGHTS_MAX, FrameType, pack_frame
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.rule_state import RuleState, pack_rule_state, parse_rule_state

COPY_WEIGHTS: Final = 4096  # in one piece of a copy,
COPY_S: Final = 0.25  # which go out this far apart: 64 or 128 kB a second
WAITING_BYTES_MAX: Final = 256 * 1024**2  # for owners that have no link, or are slow to take it
RESTORED_TIMEOUTS: Final = 2.0  # failure timeouts in a view, before what a checkpoint had is given to owners
LATE_TIMEOUTS: Final = 12.0  # failure timeouts after a move, when nothing more is expected of others


class Custody:
    """A node's part in keeping the states of all owners, beside that of its own range."""

    def __init__(
        self,
        cluster: Cluster,
        state: RangeState,
        *,
        weights: int,
        out: Outbound,
        restored: Iterable[bytes],
    ) -> None:
        """`state`: of this node's rule. `restored`: what `pack` returned for a checkpoint; owners take it
        where they got nothing from anybody.
        """
        self.waiting: deque[RuleState] = deque()  # for the owners of these weights
        self._cluster = cluster
        self._state = state
        self._weights = weights
        self._out = out
        self._restored = [parse_rule_state(body, weights, len(state.arrays)) for body in restored]
        self._moved_at = 0.0
        self._entered: float | None = None  # when this node's first view began
        self._owners: dict[Origin, Range] = {}
        self._copies: dict[Origin, dict[int, RuleState]] = {}  # of the owner before this one, by first weight
        self._copied_to = 0  # the weight where the next piece of a copy begins
        self._copied_at = 0.0

    @property
    def size_bytes(self) -> int:
        """Return what is kept of other owners' states, or waits for them."""
        copies = (piece for pieces in self._copies.values() for piece in pieces.values())
        return sum(piece.arrays.nbytes for piece in (*self.waiting, *copies))

    def _deputy_of(self, owner: Origin) -> Origin | None:
        """Return who owns the range of this owner when it is gone."""
        owners = list(self._owners)
        place = owners.index(owner)
        others = [*owners[place + 1 :], *owners[:place][::-1]]
        return others[0] if others else None

    def take(self, peer: Peer, body: bytes | bytearray) -> None:
        """Take in a peer's RULE_STATE; PeerError unless all of it is right."""
        state = self._state
        piece = parse_rule_state(body, self._weights, len(state.arrays))
        if not state.can_be(piece.arrays):
            raise PeerError(RejectCode.RULE_STATE, "a rule's state is refused: a sum of squares is below 0")
        if not piece.copy:
            self.give(piece)
        elif peer.origin in self._owners and self._deputy_of(peer.origin) == self._cluster.me:
            self._keep(peer.origin, piece)

    def _keep(self, owner: Origin, piece: RuleState) -> None:
        """Keep a piece of a copy in the place of what it overlaps: the owner's range may have moved."""
        begin, end = piece.range
        pieces = self._copies.setdefault(owner, {})
        for first, other in list(pieces.items()):
            if other.begin < end and begin < other.range[1]:
                del pieces[first]
        pieces[begin] = piece

    def give(self, piece: RuleState) -> None:
        """Send this to the owners of its weights, this node among them, as soon as they take it."""
        self.waiting.append(piece)
        lost = 0
        while sum(each.arrays.nbytes for each in self.waiting) > WAITING_BYTES_MAX:
            lost += self.waiting.popleft().arrays.shape[1]
        if lost:
            words = f"the rule's state of {lost} weights is given up: their owners do not take it"
            self._out.emit(LogEvent("rule", words, self._cluster.me.node))

    def enter(self, owners: dict[Origin, Range], now: float) -> None:
        """Follow who owns what, ascending: give the copy of an owner that is gone to the new ones."""
        before, self._owners = self._owners, owners
        self._moved_at = now
        if self._entered is None and len(owners) > 1:
            self._entered = now
        for owner in list(self._copies):
            if owner in owners and self._deputy_of(owner) == self._cluster.me:
                continue
            pieces = self._copies.pop(owner)
            if owner not in owners and owner in before:
                for piece in pieces.values():
                    self.give(RuleState(piece.begin, piece.steps, piece.arrays))
        self._copied_to = 0

    def tick(self, now: float) -> None:
        """Send what is due."""
        timeout_s = self._cluster.timing.failure_timeout_s
        if now - self._moved_at >= LATE_TIMEOUTS * timeout_s:
            self._state.complete()
        in_view_s = 0.0 if self._entered is None else now - self._entered
        if self._restored and in_view_s >= RESTORED_TIMEOUTS * timeout_s:
            for piece in self._restored:
                self.give(piece)
            self._restored.clear()
        self.push()
        if now - self._copied_at >= COPY_S:
            self._copied_at = now
            self._send_copy()

    def pack(self) -> list[bytes]:
        """Return the state of this node's range and what waits for owners, as bodies of RULE_STATE frames."""
        begin, end = self._state.range
        pieces = [*self.waiting, *([self._state.cut(begin, end)] if begin < end else [])]
        return [
            pack_rule_state(piece.part(first, min(first + RULE_STATE_WEIGHTS_MAX, piece.range[1])))
            for piece in pieces
            if piece.arrays.any()
            for first in range(*piece.range, RULE_STATE_WEIGHTS_MAX)
        ]

    def push(self) -> None:
        """Send what waits to those that have credit."""
        for _ in range(len(self.waiting)):
            piece = self.waiting.popleft()
            begin, end = piece.range
            for owner, owned in self._owners.items():
                first, last = max(owned[0], begin), min(owned[1], end)
                if first < last:
                    self._push_to(owner, piece.part(first, last))

    def _push_to(self, owner: Origin, piece: RuleState) -> None:
        """Send this to one owner, or keep what it does not take now."""
        if owner == self._cluster.me:
            self._state.add(piece)
            return
        peer = self._cluster.peers.get(owner)
        begin, end = piece.range
        while begin < end and peer is not None and peer.status is not None and peer.credit > 0:
            middle = min(begin + RULE_STATE_WEIGHTS_MAX, end)
            self._send(peer, piece.part(begin, middle))
            begin = middle
        if begin < end:
            self.waiting.append(piece.part(begin, end))

    def _send(self, peer: Peer, piece: RuleState) -> None:
        self._out.send(peer, pack_frame(FrameType.RULE_STATE, pack_rule_state(piece)))

    def _send_copy(self) -> None:
        begin, end = self._state.range
        me = self._cluster.me
        deputy = self._deputy_of(me) if me in self._owners else None
        peer = None if deputy is None else self._cluster.peers.get(deputy)
        if begin == end or peer is None or peer.status is None or peer.barred or peer.credit <= 0:
            return
        first = self._copied_to if begin <= self._copied_to < end else begin
        last = min(first + COPY_WEIGHTS, end)
        piece = self._state.cut(first, last)
        if piece.arrays.any():
            self._send(peer, RuleState(piece.begin, piece.steps, piece.arrays, copy=True))
        self._copied_to = last
