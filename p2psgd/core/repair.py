"""Whom to ask for updates that do not come by themselves, and when to give up.

One NEED at a time for each origin, to a peer whose STATUS shows that it is ahead. One that has brought
nothing for a patience, or has answered GAP, is passed over as long as another is ahead. When everybody who
is ahead has answered GAP, and that has been so for one patience in which somebody else might have linked,
there is no hope. Only time in which this node was awake counts, since what came while it was stopped is not
read yet, and a linked peer that has fallen silent may hold anything. At most ORIGINS_MAX origins are asked
for at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.peer import Peer
from p2psgd.wire.messages import ORIGINS_MAX, Need

LOOKS_PER_PATIENCE: Final = 5  # at least so often is a node awake that looks; a longer time it has slept


@dataclass(slots=True)
class _Search:
    """The search for what is missing of one origin."""

    asked: Origin | None = None  # whose answer is awaited,
    last: int = 0  # up to this sequence;
    applied: int = 0  # our sequence when progress was last seen,
    since: float = 0.0  # and when that was
    idle: set[Origin] = field(default_factory=set)  # peers that brought nothing when asked
    floors: dict[Origin, int] = field(default_factory=dict)  # peers that answered GAP
    hopeless_s: float = 0.0  # of the time awake


class Repair:
    """What is being searched for, by origin."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._searches: dict[Origin, _Search] = {}
        self._looked = 0.0  # when `hopeless` was called last

    def missing(
        self,
        origin: Origin,
        last: int,
        peer: Peer,
        *,
        frontier: Frontier,
        peers: Mapping[Origin, Peer],
        now: float,
    ) -> Need | None:
        """`peer` holds `origin` up to `last` or beyond and we do not: the NEED to send it, if it is to be
        asked now.
        """
        applied = frontier.sequence(origin)
        search = self._searches.get(origin)
        if search is None:
            if len(self._searches) >= ORIGINS_MAX:
                return None
            search = self._searches[origin] = _Search()
        if search.asked is not None and applied < search.last:
            if applied > search.applied:
                search.applied, search.since = applied, now
            if now - search.since < self._patience_s:
                return None
            search.idle.add(search.asked)
        if search.floors.get(peer.origin, 0) > applied:
            return None
        if peer.origin in search.idle:
            if any(self._is_better(other, origin, applied, search) for other in peers.values()):
                return None
            search.idle.clear()
        search.asked, search.last, search.applied, search.since = peer.origin, last, applied, now
        return Need(node=origin.node, incarnation=origin.incarnation, first=applied + 1, last=last)

    @staticmethod
    def _is_better(other: Peer, origin: Origin, applied: int, search: _Search) -> bool:
        gap = search.floors.get(other.origin, 0) > applied
        return other.has(origin) > applied and other.origin not in search.idle and not gap

    def gap(self, origin: Origin, peer: Origin, floor: int) -> None:
        """`peer` no longer holds `origin` up to `floor`; believed of its own updates, or if it was asked."""
        search = self._searches.get(origin)
        if search is None and origin == peer and len(self._searches) < ORIGINS_MAX:
            search = self._searches[origin] = _Search()
        if search is None or peer not in (origin, search.asked):
            return
        search.floors[peer] = floor
        if search.asked == peer:
            search.asked = None

    def has_gap(self, origin: Origin, peer: Origin, applied: int) -> bool:
        """`peer` has said that it no longer holds what comes after `applied`."""
        search = self._searches.get(origin)
        return search is not None and search.floors.get(peer, 0) > applied

    def forget(self, peer: Origin) -> None:
        """The link to `peer` is gone: nothing is expected of it, and what it said is void."""
        for search in self._searches.values():
            search.idle.discard(peer)
            search.floors.pop(peer, None)
            if search.asked == peer:
                search.asked = None

    def hopeless(
        self, frontier: Frontier, peers: Mapping[Origin, Peer], now: float
    ) -> tuple[Origin, int] | None:
        """An origin of which we have lacked, for one patience, updates that no linked peer holds; and up to
        where.

        A GAP may be the first news of what we lack, before any STATUS. The origin itself, while it is linked
        and has not said GAP, holds all that we lack of it, whatever its last STATUS says.
        """
        awake_s = min(now - self._looked, self._patience_s / LOOKS_PER_PATIENCE)
        self._looked = now
        for origin, search in list(self._searches.items()):
            applied = frontier.sequence(origin)
            told_gap = {peer for peer, floor in search.floors.items() if floor > applied}
            ahead = {
                peer.origin
                for peer in peers.values()
                if peer.has(origin) > applied or self._is_unknown(peer, now)
            }
            if not ahead and not told_gap:
                del self._searches[origin]
            elif ahead - told_gap or (origin in peers and origin not in told_gap):
                search.hopeless_s = 0.0
            elif search.hopeless_s > self._patience_s:
                return origin, max(search.floors.values())
            else:
                search.hopeless_s += awake_s
        return None

    def _is_unknown(self, peer: Peer, now: float) -> bool:
        """Nobody can tell what it holds: two of its STATUS are missing, five of which come in a patience."""
        return peer.status is None or now - peer.heard > self._patience_s / 2
