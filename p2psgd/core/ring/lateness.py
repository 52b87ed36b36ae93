"""Who holds the ring back, and for how long: whom a READY member wishes out of the view, and why.

Times are those of the node's `RunningClock`: for a pause of its own it blames nobody. Nobody is wished out if
that would leave a ring of one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.core.parts import Parts
from p2psgd.core.ring.formation import Formation
from p2psgd.core.ring.standing import Standings
from p2psgd.wire.ring import RingState

UNREADY_PATIENCES: Final = 12  # a snapshot takes its time


class Lateness:
    """Of one replica; `look` several times a second."""

    def __init__(self, parts: Parts, standings: Standings, formation: Formation) -> None:
        self._parts = parts
        self._standings = standings
        self._formation = formation
        self._since: dict[tuple[Hashable, ...], float] = {}  # what is the matter, and since when

    def look(self, mine: RingState, missing: list[Origin], now: float) -> dict[Origin, str]:
        """The members that hold the ring back, and in which words; `missing`: whose share of the round under
        way has not come.
        """
        timing = self._parts.timing
        matters = self._matters(mine, missing)
        self._since = {matter: self._since.get(matter, now) for matter in matters}
        late = {}
        for matter, words in matters.items():
            kind, member = matter[0], matter[1]
            assert isinstance(member, Origin)
            since = self._since[matter]
            if kind == "silent":
                since = max(since, self._heard(member))
            limit_s = timing.patience_s * (UNREADY_PATIENCES if kind == "unready" else 1)
            blamed = now - since >= limit_s
            if kind == "share":  # what it told meanwhile may have crossed its share
                told = self._standings.of(member, self._parts.membership.view)
                blamed = blamed and told is not None and told.at >= since + limit_s
            if blamed and member not in late:
                late[member] = f"{words} for {now - since:.1f} s"
        return late if len(self._parts.membership.view.members) - len(late) >= 2 else {}

    def _matters(self, mine: RingState, missing: list[Origin]) -> dict[tuple[Hashable, ...], str]:
        """What is the matter with whom, the worst first."""
        parts, view = self._parts, self._parts.membership.view
        matters: dict[tuple[Hashable, ...], str] = {}
        if parts.me not in view or not parts.ready or parts.membership.stopping or len(view.members) < 2:
            return matters
        if not self._standings.active(view, mine=mine.active):
            return matters  # nobody waits
        for member in parts.other_members:
            matters["silent", member, view.number] = "nothing was heard of it while the ring waits"
        if mine.running:
            if mine.contributed:
                self._add_late_shares(matters, mine, missing)
            return matters
        for member in self._formation.linked_to():
            if member not in parts.peers:
                matters["unlinked", member, view.number] = "a link of it that the ring needs was missing"
        for member in parts.other_members:
            peer = parts.peers.get(member)
            if peer is not None and not peer.ready:
                matters["unready", member, view.number] = "the ring has waited for it to be ready"
        return matters

    def _add_late_shares(
        self, matters: dict[tuple[Hashable, ...], str], mine: RingState, missing: list[Origin]
    ) -> None:
        """If most have given theirs: else the pace is that of the others, and this node is quick."""
        view, number = self._parts.membership.view, mine.round + 1
        late = []
        for member in missing:
            told = self._standings.of(member, view)
            if told is None or not told.state.active or told.state.contributed:
                continue
            if (told.state.round, told.state.attempt) == (mine.round, mine.attempt):
                late.append(member)
        if 2 * len(late) < len(view.members):
            words = f"its trainer has not given its share of round {number}"
            matters |= {("share", member, view.number, number): words for member in late}

    def _heard(self, member: Origin) -> float:
        """When there was news of it last, by whomever."""
        peer = self._parts.peers.get(member)
        direct = float("-inf") if peer is None else peer.heard
        return max(direct, self._parts.acks.heard(member))
