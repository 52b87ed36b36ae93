"""Whom to ask for updates that do not come by themselves, and when to give up.

One NEED at a time for each origin, to a peer whose STATUS shows that it is ahead; another peer is asked
when nothing has moved for one patience. A peer that answered GAP is not asked again for what it no longer
holds. Once everybody who is ahead has answered GAP, and one more patience has gone by in which somebody
else might have linked, there is no hope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.peer import Peer
from p2psgd.wire.messages import Need


@dataclass(slots=True)
class _Asked:
    peer: Origin
    last: int
    applied: int  # our sequence when progress was last seen ...
    since: float  # ... and when that was


@dataclass(slots=True)
class _Gaps:
    floors: dict[Origin, int]  # by the peer that answered
    since: float


class Repair:
    """Requests under way and gaps reported, by origin."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._asked: dict[Origin, _Asked] = {}
        self._gaps: dict[Origin, _Gaps] = {}

    def missing(
        self, origin: Origin, applied: int, last: int, peer: Peer, now: float
    ) -> tuple[Peer, Need] | None:
        """We hold `origin` up to `applied`, `peer` up to `last` or more: the NEED to send it, unless one is
        under way.
        """
        asked = self._asked.get(origin)
        if asked is not None and applied < asked.last:
            if applied > asked.applied:
                asked.applied, asked.since = applied, now
            if now - asked.since < self._patience_s:
                return None
        gaps = self._gaps.get(origin)
        if gaps is not None and gaps.floors.get(peer.origin, 0) > applied:
            return None
        self._asked[origin] = _Asked(peer.origin, last, applied, now)
        return peer, Need(node=origin.node, incarnation=origin.incarnation, first=applied + 1, last=last)

    def gap(self, origin: Origin, peer: Origin, floor: int, now: float) -> None:
        """`peer` no longer holds `origin` up to `floor`: ask others from now on."""
        gaps = self._gaps.setdefault(origin, _Gaps({}, now))
        gaps.floors[peer] = floor
        asked = self._asked.get(origin)
        if asked is not None and asked.peer == peer:
            del self._asked[origin]

    def hopeless(
        self, frontier: Frontier, peers: Mapping[Origin, Peer], now: float
    ) -> tuple[Origin, int] | None:
        """An origin of which we lack updates that no linked peer holds, and the highest floor reported."""
        for origin, gaps in list(self._gaps.items()):
            applied = frontier.sequence(origin)
            floors = {peer: floor for peer, floor in gaps.floors.items() if floor > applied}
            if not floors:
                del self._gaps[origin]
                continue
            ahead = [peer for peer in peers.values() if peer.status is None or peer.has(origin) > applied]
            if ahead and all(peer.origin in floors for peer in ahead) and now - gaps.since > self._patience_s:
                return origin, max(floors.values())
        return None
