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
PAST_FLOORS_MAX: Final = 8  # of one member, by earlier reports; beyond, they are made one


_Floors = Mapping[Origin, int]  # sequences by origin, that were applied at least


@dataclass(slots=True)
class _Known:
    applied: dict[Origin, int] = field(default_factory=dict)
    bridged: tuple[_Floors, ...] = ()  # the same, as others said since its last STATUS
    durable: dict[Origin, int] = field(default_factory=dict)
    own_view: int = 0  # the highest that it told itself
    view: int = 0
    reporter: Origin | None = None
    heard: float = NEVER  # by itself, or from a report that is gone


_NOTHING: Final = _Known()


@dataclass(slots=True)
class _Report:
    """The last word of one member on others. As long as it is on the same ones, only `least` and `at` change,
    and the others need not be gone through, who may be a thousand.
    """

    at: float
    vouched: Set[Origin]
    least: dict[Origin, int]  # what all of these had applied that are not linked: the highest reported
    context: tuple[int, int]  # in which it was gone through


class Acknowledgements:
    """The acknowledgements of each other incarnation."""

    def __init__(self, me: Origin) -> None:
        self._me = me
        self._known: dict[Origin, _Known] = {}
        self._reports: dict[Origin, _Report] = {}
        self._links = 0  # how often these, or what is believed, have changed

    def on_status(
        self,
        peer: Origin,
        rows: Mapping[Origin, FrontierRow],
        view: int,
        confirmed: Iterable[ConfirmedRow],
        now: float,
        *,
        linked: Container[Origin] = (),
        view_max: int = 2**64,
        unchanged: bool = False,
    ) -> None:
        """Take in a STATUS of `peer`. `confirmed`: its reports on others, as far as they are believed; none
        with a later view than `view_max`, or a wrong number would stay. `linked`: the incarnations that
        report for themselves. `unchanged`: `confirmed` is as it was in its STATUS before.
        """
        known = self._of(peer)
        known.own_view = max(view, known.own_view)
        known.view, known.reporter, known.heard = known.own_view, peer, now
        known.bridged = ()
        applied, durable = known.applied, known.durable
        least = {}
        for origin, row in rows.items():
            if row.sequence > applied.get(origin, 0):
                applied[origin] = row.sequence
            if row.durable > durable.get(origin, 0):
                durable[origin] = row.durable
            if row.least:
                least[origin] = row.least
        before, context = self._reports.get(peer), (self._links, view_max)
        if unchanged and before is not None and before.context == context:
            before.at = now
            for origin, sequence in least.items():
                if sequence > before.least.get(origin, 0):
                    before.least[origin] = sequence
            return
        self._reports[peer] = self._go_through(peer, confirmed, least, now, linked=linked, context=context)

    def _go_through(
        self,
        peer: Origin,
        confirmed: Iterable[ConfirmedRow],
        least: dict[Origin, int],
        now: float,
        *,
        linked: Container[Origin],
        context: tuple[int, int],
    ) -> _Report:
        """Take in what a peer says of each other one; `least` may grow from now on."""
        before = self._reports.get(peer)
        old = {} if before is None else before.least
        more = {origin: sequence for origin, sequence in old.items() if sequence > least.get(origin, 0)}
        bridged: dict[tuple[int, ...], tuple[_Floors, ...]] = {}  # most members have the same
        vouched = set()
        for other in confirmed:
            member = Origin(other.node, other.incarnation)
            if not other.view or member in (self._me, peer):
                continue
            vouched.add(member)
            known = self._of(member)
            if member in linked:
                continue
            bridged_view = min(other.view, context[1])
            if bridged_view >= known.view:
                known.view, known.reporter = bridged_view, peer
            key = tuple(map(id, known.bridged))
            floors = bridged.get(key)
            if floors is None:
                floors = bridged[key] = self._add_floors(known.bridged, old, more, least)
            known.bridged = floors
        if before is not None:
            self._keep_heard(before, before.vouched - vouched)
        return _Report(now, vouched, least, context)

    def _add_floors(
        self, bridged: tuple[_Floors, ...], old: _Floors, more: _Floors, least: _Floors
    ) -> tuple[_Floors, ...]:
        """Return what was bridged, with `least` in the place of `old`, of the same reporter, and with what
        that had `more`, if the member was one of those that `old` was of.
        """
        added = tuple(floors for floors in bridged if floors is not old)
        if more and len(added) < len(bridged):
            added += (more,)
        if len(added) <= PAST_FLOORS_MAX:
            return *added, least
        live = {id(report.least) for report in self._reports.values()}  # which still grow
        past = [floors for floors in added if id(floors) not in live]
        if len(past) <= PAST_FLOORS_MAX:
            return *added, least
        merged: dict[Origin, int] = {}
        for floors in past:
            for origin, sequence in floors.items():
                merged[origin] = max(sequence, merged.get(origin, 0))
        return merged, *(floors for floors in added if id(floors) in live), least

    def _keep_heard(self, report: _Report, members: Iterable[Origin]) -> None:
        """Note when a report that goes was made, or these members would seem to be silent since long ago."""
        for member in members:
            if (known := self._known.get(member)) is not None:
                known.heard = max(known.heard, report.at)

    def links_changed(self) -> None:
        """Note that other peers are linked than before, which report for themselves."""
        self._links += 1

    def _of(self, life: Origin) -> _Known:
        known = self._known.get(life)
        if known is None:
            known = self._known[life] = _Known()
        return known

    def forget_hearsay(self) -> None:
        """Forget reports on others, since the reporter may be wrong. Members report anew."""
        for report in self._reports.values():
            self._keep_heard(report, report.vouched)
        self._reports.clear()
        for life, known in self._known.items():
            known.bridged = ()
            known.view, known.reporter = known.own_view, life if known.own_view else None

    def keep(self, incarnations: Set[Origin]) -> None:
        """Forget all incarnations but `incarnations`."""
        for life in self._known.keys() - incarnations:
            del self._known[life]
        for life in self._reports.keys() - incarnations:
            report = self._reports.pop(life)
            self._keep_heard(report, report.vouched)

    def applied(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        applied = known.applied.get(origin, 0)
        for floors in known.bridged:
            applied = max(applied, floors.get(origin, 0))
        return applied

    def durable(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have in a checkpoint."""
        return self._known.get(member, _NOTHING).durable.get(origin, 0)

    def all_applied(self, member: Origin) -> dict[Origin, int]:
        """Return the last sequence of each origin that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        applied = dict(known.applied)
        for floors in known.bridged:
            for origin, sequence in floors.items():
                applied[origin] = max(sequence, applied.get(origin, 0))
        return applied

    def view(self, member: Origin) -> int:
        """Return the highest view number that `member` is known to know."""
        return self._known.get(member, _NOTHING).view

    def reporter(self, member: Origin) -> Origin | None:
        """Return the member that last reported that view: `member` itself, or one whose frontier covers all
        that the log of `member` had trimmed by then.
        """
        return self._known.get(member, _NOTHING).reporter

    def heard(self, member: Origin) -> float:
        """Return the time of the last report on `member`, its own or another's."""
        reports = (report.at for report in self._reports.values() if member in report.vouched)
        return max(self.heard_itself(member), max(reports, default=NEVER))

    def heard_itself(self, member: Origin) -> float:
        """Return the time of its own last report, or of one that is gone: it needs no look at all others'."""
        return self._known.get(member, _NOTHING).heard

    def stable(self, origin: Origin, members: Iterable[Origin]) -> int:
        """Return the last sequence of `origin` that all `members` but this node have applied; 2^64 without
        others.
        """
        return min((self.applied(member, origin) for member in members if member != self._me), default=2**64)
