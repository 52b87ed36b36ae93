"""Acknowledgements: which member has applied which updates, by the latest reports. Trimming, eviction and
admission rest on them (VIEWS.md, 19).

A member reports by its own STATUS, or by way of another: the `least` column of a STATUS holds for all members
listed in its `confirmed` table, so nodes that cannot reach each other still know what the other has. A linked
member reports for itself: reports by others count only as a sign of life, and its own STATUS replaces them.
An incarnation's own reports only grow; a new incarnation begins with nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import ConfirmedRow, FrontierRow

NEVER: Final = float("-inf")


@dataclass(slots=True)
class _Known:
    applied: dict[Origin, int] = field(default_factory=dict)
    bridged: dict[Origin, int] = field(default_factory=dict)  # the same, as others said since its last STATUS
    durable: dict[Origin, int] = field(default_factory=dict)
    own_view: int = 0  # the highest that it told itself
    view: int = 0
    reporter: Origin | None = None
    heard: float = NEVER


_NOTHING: Final = _Known()


class Acknowledgements:
    """The acknowledgements of each other incarnation."""

    def __init__(self, me: Origin) -> None:
        self._me = me
        self._known: dict[Origin, _Known] = {}

    def on_status(
        self,
        peer: Origin,
        rows: Mapping[Origin, FrontierRow],
        view: int,
        confirmed: list[ConfirmedRow],
        now: float,
        *,
        linked: Container[Origin] = (),
        view_max: int = 2**64,
    ) -> None:
        """Take in a STATUS of `peer`. `confirmed`: its reports on others, as far as they are believed; none
        with a later view than `view_max`, or a wrong number would stay. `linked`: the incarnations that
        report for themselves.
        """
        known = self._of(peer)
        known.own_view = max(view, known.own_view)
        known.view, known.reporter, known.heard = known.own_view, peer, now
        known.bridged.clear()
        applied, durable = known.applied, known.durable
        least = []
        for origin, row in rows.items():
            if row.sequence > applied.get(origin, 0):
                applied[origin] = row.sequence
            if row.durable > durable.get(origin, 0):
                durable[origin] = row.durable
            if row.least:
                least.append((origin, row.least))
        for other in confirmed:
            member = Origin(other.node, other.incarnation)
            if other.view and member not in (self._me, peer):
                known = self._of(member)
                known.heard = now
                if member in linked:
                    continue
                bridged_view = min(other.view, view_max)
                if bridged_view >= known.view:
                    known.view, known.reporter = bridged_view, peer
                bridged = known.bridged
                for origin, sequence in least:
                    if sequence > bridged.get(origin, 0):
                        bridged[origin] = sequence

    def _of(self, life: Origin) -> _Known:
        known = self._known.get(life)
        if known is None:
            known = self._known[life] = _Known()
        return known

    def forget_hearsay(self) -> None:
        """Forget reports on others, since the reporter may be wrong. Members report anew."""
        for life, known in self._known.items():
            known.bridged.clear()
            known.view, known.reporter = known.own_view, life if known.own_view else None

    def keep(self, incarnations: Set[Origin]) -> None:
        """Forget all incarnations but `incarnations`."""
        for life in self._known.keys() - incarnations:
            del self._known[life]

    def applied(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        return max(known.applied.get(origin, 0), known.bridged.get(origin, 0))

    def durable(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have in a checkpoint."""
        return self._known.get(member, _NOTHING).durable.get(origin, 0)

    def all_applied(self, member: Origin) -> dict[Origin, int]:
        """Return the last sequence of each origin that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        return {
            origin: max(known.applied.get(origin, 0), known.bridged.get(origin, 0))
            for origin in known.applied.keys() | known.bridged.keys()
        }

    def view(self, member: Origin) -> int:
        """Return the highest view number that `member` is known to know."""
        return self._known.get(member, _NOTHING).view

    def reporter(self, member: Origin) -> Origin | None:
        """Return the member that last reported that view: `member` itself, or one whose frontier covers all
        that the log of `member` had trimmed by then.
        """
        return self._known.get(member, _NOTHING).reporter

    def heard(self, member: Origin) -> float:
        """Return the time of the last report on `member`."""
        return self._known.get(member, _NOTHING).heard

    def stable(self, origin: Origin, members: Iterable[Origin]) -> int:
        """Return the last sequence of `origin` that all `members` but this node have applied; 2^64 without
        others.
        """
        return min((self.applied(member, origin) for member in members if member != self._me), default=2**64)
