"""Looking after log and members as time passes: trim, warn, wish that somebody be evicted, make room."""

from __future__ import annotations

from typing import Final

from p2psgd.core.budget import EVICT, TRIM_FOR_JOINER, WARN
from p2psgd.core.effects import Alarm
from p2psgd.core.frontier import Origin
from p2psgd.core.parts import Parts
from p2psgd.core.view import View

JOINING_PATIENCES: Final = 4  # so long a joiner may hold back a full log
WAITED_FOR_PATIENCES: Final = 2  # so long a member may be unheard of while a joiner waits for it


class Upkeep:
    """Of one replica; `look` several times a second."""

    def __init__(self, parts: Parts, now: float) -> None:
        self._parts = parts
        self._warned = False
        self._wished = False  # that somebody be evicted, at the last look
        # members, and since when they are known as such
        self._since = dict.fromkeys(parts.membership.view.members, now)

    def look(self, now: float) -> None:
        """Trim what may go, then warn and wish by how full the log still is."""
        parts = self._parts
        parts.budget.look(
            parts.membership.view,
            parts.acks,
            ready=parts.ready,
            own_bytes=parts.tally.own_bytes,
            saved=parts.saved,
        )
        fullness = parts.budget.fullness
        if fullness >= WARN and not self._warned:
            who = ", ".join(map(parts.name_of, parts.budget.holders[:3])) or "the lack of an agreed view"
            parts.out.order(Alarm(f"the log is {fullness:.0%} full, held back by {who}"))
        self._warned = fullness >= WARN
        wishes = self._wishes(now) if parts.ready else {}
        if not (wishes or self._wished):
            return
        self._wished = bool(wishes)
        for member in parts.membership.view.members:
            if member in wishes:
                parts.membership.wish_eviction(member.node, wishes[member], now)
            else:
                parts.membership.withdraw_eviction(member.node)

    def _wishes(self, now: float) -> dict[Origin, str]:
        """Who holds back a log that is nearly full is to leave the view, or a ring; and, while a member is
        not READY and so waits for all the others, those that nobody hears of.
        """
        parts, view, wishes = self._parts, self._parts.membership.view, dict(self._parts.late)
        limit_s = WAITED_FOR_PATIENCES * parts.timing.patience_s
        if any(
            not peer.ready and peer.status is not None and peer.origin in view
            for peer in parts.peers.values()
        ):
            for member in parts.other_members:
                silent_s = now - max(parts.acks.heard(member), self._since[member])
                if silent_s > limit_s:
                    wishes[member] = f"nothing was heard of it for {silent_s:.0f} s while others wait for it"
        if parts.budget.fullness >= EVICT:
            holders = (each for each in parts.budget.holders if not self._is_joining(each, now))
            worst = next(holders, None)
            if worst is not None:
                wishes[worst] = f"it holds back a log that is {parts.budget.fullness:.0%} full"
        return wishes

    def _is_joining(self, member: Origin, now: float) -> bool:
        """It is on its way to READY, and has been for less than four patiences. Of one that is not linked
        nobody tells whether it has arrived: it has that time in any case.
        """
        parts, peer = self._parts, self._parts.peers.get(member)
        if now - self._since[member] >= JOINING_PATIENCES * parts.timing.patience_s:
            return False
        admitted_in = parts.membership.view.member_since(member) or 0
        return peer is None or not peer.ready or peer.view < admitted_in  # what it said before is void

    def enter_view(self, before: View, now: float) -> None:
        """The view after `before` is known. A newcomer has acknowledged nothing yet, so from now on nothing
        can be trimmed until it is READY: make room by the view that ends.
        """
        parts, view = self._parts, self._parts.membership.view
        if parts.ready and any(member not in before for member in view.members):
            parts.budget.trim(before, parts.acks, parts.saved, TRIM_FOR_JOINER)
        self._since = {member: self._since.get(member, now) for member in view.members}
