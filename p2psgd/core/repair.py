"""Whom to ask for updates that do not come by themselves, and when to give up.

One NEED at a time for each origin, to a peer whose STATUS shows that it is ahead. One that has brought
nothing for a patience, or has answered GAP, is passed over as long as another is ahead. What no
peer's log holds any more comes with a snapshot. At most ORIGINS_MAX origins are asked for at once; one more
takes the place of one that has brought nothing for a patience.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.peer import Peer
from p2psgd.wire.messages import ORIGINS_MAX, Need


@dataclass(slots=True)
class _Search:
    """The search for what is missing of one origin."""

    asked: Origin | None = None  # whose answer is awaited,
    last: int = 0  # up to this sequence;
    applied: int = 0  # our sequence when progress was last seen,
    since: float = 0.0  # and when that was
    idle: set[Origin] = field(default_factory=set)  # peers that brought nothing when asked
    floors: dict[Origin, int] = field(default_factory=dict)  # peers that answered GAP


class Repair:
    """What is being searched for, by origin."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._searches: dict[Origin, _Search] = {}
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
    ) -> Need | None:
        """`peer` holds `origin` up to `last` or beyond and we do not: the NEED to send it, if it is to be
        asked now.
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

    def _give_one_up(self, now: float) -> bool:
        """One that has brought nothing for a patience; else made-up origins could take all the room."""
        if now < self._none_idle_before:
            return False  # or each of a thousand rows would look at a thousand searches
        for origin, search in self._searches.items():
            if now - search.since >= self._patience_s:
                del self._searches[origin]
                return True
        self._none_idle_before = self._patience_s + min(each.since for each in self._searches.values())
        return False

    @staticmethod
    def _is_better(other: Peer, origin: Origin, applied: int, search: _Search) -> bool:
        gap = search.floors.get(other.origin, 0) > applied
        return other.holds(origin, applied) and other.origin not in search.idle and not gap

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

    def clean(self, frontier: Frontier, peers: Mapping[Origin, Peer]) -> None:
        """Forget searches for what is found, or what nobody linked has."""
        for origin, search in list(self._searches.items()):
            applied = frontier.sequence(origin)
            wanted = any(peer.has(origin) > applied for peer in peers.values())
            if not wanted and not any(floor > applied for floor in search.floors.values()):
                del self._searches[origin]
