"""The state of owners' rules on its way: to the owners of other weights, and as copies to deputies.

An owner that a view, or a member that is back, takes weights from sends what it knows of them to the next
one. So that the state of a killed owner is not lost, each owner sends its deputy, who owns its range when it
is gone, a copy in small pieces, one after the other and again from the beginning. If it leaves the view, or
is gone for long, the deputy gives the copy to whose the weights are. What nobody knows begins at zero, as at
the start of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import LogEvent
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.ranges import Range
from p2psgd.core.owners.rules.rule import RangeState
from p2psgd.core.peer import Peer
from p2psgd.core.send import Outbound
from p2psgd.core.view import View
from p2psgd.wire.frames import RULE_STATE_WEIGHTS_MAX, FrameType, pack_frame
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.rule_state import Kind, RuleState, pack_rule_state, parse_rule_state

COPY_WEIGHTS: Final = 4096  # in one piece of a copy,
COPY_S: Final = 0.25  # which go out this far apart: 64 or 128 kB a second
WAITING_BYTES_MAX: Final = 256 * 1024**2  # for owners that have no link, or are slow to take it
GONE_TIMEOUTS: Final = 4.0  # failure timeouts that an owner is gone for, before its copy is given away
PIECES_MAX: Final = 4096  # that wait
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
        bodies = (parse_rule_state(body, weights, len(state.arrays)) for body in restored)
        self._restored = [replace(body, kind=Kind.SPARE) for body in bodies]
        self._moved_at = 0.0
        self._entered: float | None = None  # when this node's first view began
        self._owners: dict[Origin, Range] = {}
        self._copies: dict[Origin, RuleState] = {}  # of the owners whose deputy this node is; zero: unknown
        self._gone_since: dict[Origin, float] = {}  # of these
        self._copied_to = 0  # the weight where the next piece of a copy begins
        self._copied_at = 0.0

    @property
    def waits(self) -> bool:
        """Return whether states are about to come to this node's range, a checkpoint's among them, and it has
        none yet: a rule that begins at zero would make far too large steps until then.
        """
        begin, end = self._state.range
        return self._state.lacks_all and (
            bool(self._restored)
            or any(piece.begin < end and piece.range[1] > begin for piece in self.waiting)
        )

    @property
    def size_bytes(self) -> int:
        """Return what is kept of other owners' states, or waits for them."""
        kept = (*self.waiting, *self._restored, *self._copies.values())
        return sum(piece.arrays.nbytes for piece in kept)

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
        if piece.kind is not Kind.COPY:
            self._add(piece)  # what is of others goes to them at the next tick: two could not agree at once
            self._bound()
        elif peer.origin in self._owners and self._deputy_of(peer.origin) == self._cluster.me:
            self._keep(peer.origin, piece)

    def _keep(self, owner: Origin, piece: RuleState) -> None:
        """Keep a piece of an owner's copy, as far as it is of its range."""
        begin, end = self._owners[owner]
        copy = self._copies.get(owner)
        if copy is None or copy.range != (begin, end):
            copy = RuleState(begin, 0, np.zeros((len(piece.arrays), end - begin), np.float32), Kind.SPARE)
        first, last = max(begin, piece.begin), min(end, piece.range[1])
        if first < last:
            copy.part(first, last).arrays[:] = piece.part(first, last).arrays
            self._copies[owner] = replace(copy, steps=piece.steps)

    def give(self, piece: RuleState) -> None:
        """Send this to the owners of its weights, this node among them, as soon as they take it."""
        self._distribute(piece)
        self._bound()

    def _bound(self) -> None:
        lost, size = 0, sum(each.arrays.nbytes for each in self.waiting)
        while size > WAITING_BYTES_MAX or len(self.waiting) > PIECES_MAX:
            oldest = self.waiting.popleft()
            lost += oldest.arrays.shape[1]
            size -= oldest.arrays.nbytes
        if lost:
            words = f"the rule's state of {lost} weights is given up: their owners do not take it"
            self._out.emit(LogEvent("rule", words, self._cluster.me.node))

    def enter(self, owners: dict[Origin, Range], view: View, now: float) -> None:
        """Follow who owns what, ascending, as far as this node knows."""
        self._owners, self._moved_at = owners, now
        if self._entered is None and self._cluster.me in view:
            self._entered = now
        for owner in list(self._copies):
            if owner not in view:
                self._give_copy(owner)
            elif owner in owners and self._deputy_of(owner) != self._cluster.me:
                self._forget(owner)
            elif owner in owners:
                self._gone_since.pop(owner, None)
            else:
                self._gone_since.setdefault(owner, now)
        self._copied_to = 0

    def _forget(self, owner: Origin) -> RuleState:
        self._gone_since.pop(owner, None)
        return self._copies.pop(owner)

    def _give_copy(self, owner: Origin) -> None:
        copy = self._forget(owner)
        if copy.arrays.any():
            self.give(copy)

    def tick(self, now: float) -> None:
        """Send what is due."""
        timeout_s = self._cluster.timing.failure_timeout_s
        for owner, since in list(self._gone_since.items()):
            if now - since >= GONE_TIMEOUTS * timeout_s:
                self._give_copy(owner)
        self._restore(now, timeout_s)
        self.push()
        if now - self._copied_at >= COPY_S:
            self._copied_at = now
            self._send_copy()

    def _restore(self, now: float, timeout_s: float) -> None:
        """Give owners what the checkpoint had, after the others have given what they have: at once if there
        are no others.
        """
        if self._entered is None:
            return
        alone = len(self._cluster.membership.view.members) == 1
        if self._restored and (alone or now - self._entered >= RESTORED_TIMEOUTS * timeout_s):
            restored, self._restored = self._restored, []
            for piece in restored:
                self.give(piece)
        if not self._restored and now - self._moved_at >= LATE_TIMEOUTS * timeout_s:
            self._state.complete()

    def pack(self) -> list[bytes]:
        """Return the state of this node's range and what waits for owners, as bodies of RULE_STATE frames."""
        begin, end = self._state.range
        pieces = [*self.waiting, *self._restored, *([self._state.cut(begin, end)] if begin < end else [])]
        return [
            pack_rule_state(piece.part(first, min(first + RULE_STATE_WEIGHTS_MAX, piece.range[1])))
            for piece in pieces
            if piece.arrays.any()
            for first in range(*piece.range, RULE_STATE_WEIGHTS_MAX)
        ]

    def push(self) -> None:
        """Send what waits to those that have credit."""
        for _ in range(len(self.waiting)):
            self._distribute(self.waiting.popleft())

    def _distribute(self, piece: RuleState) -> None:
        begin, end = piece.range
        for owner, owned in self._owners.items():
            first, last = max(owned[0], begin), min(owned[1], end)
            if first < last:
                self._push_to(owner, piece.part(first, last))
        if not self._owners:
            self.waiting.append(piece)

    def _push_to(self, owner: Origin, piece: RuleState) -> None:
        """Send this to one owner, or keep what it does not take now."""
        if owner == self._cluster.me:
            self._add(piece)
            return
        peer = self._cluster.peers.get(owner)
        begin, end = piece.range
        while begin < end and peer is not None and peer.status is not None and peer.credit > 0:
            middle = min(begin + RULE_STATE_WEIGHTS_MAX, end)
            self._send(peer, piece.part(begin, middle))
            begin = middle
        if begin < end:
            self.waiting.append(piece.part(begin, end))

    def _add(self, piece: RuleState) -> None:
        """Add what is of this node's range; the rest waits, since the range is about to move."""
        self._state.add(piece)
        begin, end = piece.range
        owned = self._state.range
        for first, last in ((begin, min(end, owned[0])), (max(begin, owned[1]), end)):
            if first < last:
                self.waiting.append(piece.part(first, last))

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
            self._send(peer, replace(piece, kind=Kind.COPY))
        self._copied_to = last
