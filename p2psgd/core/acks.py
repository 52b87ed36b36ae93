"""Acknowledgements: which member has applied which updates, by the latest reports. Trimming, eviction and
admission rest on them (VIEWS.md, 19).

A member reports by its own STATUS, or by way of another: the `least` column of a STATUS holds for all members
listed in its `confirmed` table, so nodes that cannot reach each other still know what the other has. A linked
member reports for itself: reports by others count only as a sign of life, and its own STATUS replaces them.
An incarnation's own reports only grow; a new incarnation begins with nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Set
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
    """The last word of one member on others. As long as it is on the same ones, only `least`, `at` and a few
    views change, and the others need not be gone through, who may be a thousand.
    """

    at: float
    vouched: dict[int, Origin]  # by node
    least: dict[Origin, int]  # what all of these had applied that are not linked: the highest reported
    links: int  # of the time when it was gone through
    view_max: int  # the latest view that was believed then, if a later one was reported; else 2^64


def _add_floors(
    bridged: tuple[_Floors, ...], old: _Floors, more: _Floors, least: _Floors, live: Container[int]
) -> tuple[_Floors, ...]:
    """Return what was bridged, with `least` in the place of `old`, of the same reporter, and with what
    that had `more`, if the member was one of those that `old` was of. `live`: the ids of those that may grow.
    """
    added = tuple(floors for floors in bridged if floors is not old)
    if more and len(added) < len(bridged):
        added += (more,)
    if len(added) <= PAST_FLOORS_MAX:
        return *added, least
    past = [floors for floors in added if id(floors) not in live]
    if len(past) <= PAST_FLOORS_MAX:
        return *added, least
    merged: dict[Origin, int] = {}
    for floors in past:
        for origin, sequence in floors.items():
            merged[origin] = max(sequence, merged.get(origin, 0))
    return merged, *(floors for floors in added if id(floors) in live), least


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
        changed: Collection[ConfirmedRow] | None = None,
    ) -> None:
        """Take in a STATUS of `peer`. `confirmed`: its reports on others, as far as they are believed; none
        with a later view than `view_max`, or a wrong number would stay. `linked`: the incarnations that
        report for themselves. `changed`: those of `confirmed` that are not as they were in its STATUS before.
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
        before = self._reports.get(peer)
        if (
            before is not None
            and changed is not None
            and before.links == self._links
            and before.view_max >= view_max
            and self._keeps_report(before, changed, least)
        ):
            before.at = now
            for origin, sequence in least.items():
                if sequence > before.least.get(origin, 0):
                    before.least[origin] = sequence
            if changed:
                self._vouch(peer, changed, before, {}, {}, linked=linked, view_max=view_max)
            return
        report = _Report(now, {}, least, self._links, 2**64)
        old = {} if before is None else before.least
        more = {origin: sequence for origin, sequence in old.items() if sequence > least.get(origin, 0)}
        self._vouch(peer, confirmed, report, old, more, linked=linked, view_max=view_max)
        if before is not None:
            del self._reports[peer]
            self._keep_heard(before, set(before.vouched.values()) - set(report.vouched.values()))
        if report.vouched:
            self._reports[peer] = report

    @staticmethod
    def _keeps_report(report: _Report, changed: Collection[ConfirmedRow], least: _Floors) -> bool:
        """Return whether a report only grows by what has changed: it is on no fewer members, and who is new
        to it may have all that it said before.
        """
        if not changed:
            return True
        for row in changed:
            vouched = report.vouched.get(row.node)
            if vouched is not None and (not row.view or vouched.incarnation != row.incarnation):
                return False
        return all(least.get(origin, 0) >= sequence for origin, sequence in report.least.items())

    def _vouch(
        self,
        peer: Origin,
        rows: Iterable[ConfirmedRow],
        report: _Report,
        old: _Floors,
        more: _Floors,
        *,
        linked: Container[Origin],
        view_max: int,
    ) -> None:
        """Take in what a peer says of others in its `report`. `old` is what the one before said that this one
        takes the place of, with `more` for some origins.
        """
        live = {id(each.least) for each in self._reports.values()}  # which still grow
        # Most members have the same, and then they share one tuple.
        bridged: dict[int, tuple[tuple[_Floors, ...], tuple[_Floors, ...]]] = {}
        shared: dict[tuple[int, ...], tuple[_Floors, ...]] = {}
        for row in rows:
            member = Origin(row.node, row.incarnation)
            if not row.view or member in (self._me, peer):
                continue
            is_new = row.node not in report.vouched
            report.vouched[row.node] = member
            known = self._of(member)
            if member in linked:
                continue
            if row.view > view_max:
                report.view_max = view_max
            bridged_view = min(row.view, view_max)
            if bridged_view >= known.view:
                known.view, known.reporter = bridged_view, peer
            if not is_new:
                continue
            both = bridged.get(id(known.bridged))
            if both is None:
                floors = _add_floors(known.bridged, old, more, report.least, live)
                floors = shared.setdefault(tuple(map(id, floors)), floors)
                both = bridged[id(known.bridged)] = known.bridged, floors  # the old one keeps its id
            known.bridged = both[1]

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
            self._keep_heard(report, report.vouched.values())
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
            self._keep_heard(report, report.vouched.values())

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
        reports = (
            report.at for report in self._reports.values() if report.vouched.get(member.node) == member
        )
        return max(self.heard_itself(member), max(reports, default=NEVER))

    def heard_itself(self, member: Origin) -> float:
        """Return the time of its own last report, or of one that is gone: it needs no look at all others'."""
        return self._known.get(member, _NOTHING).heard

    def stable(self, origin: Origin, members: Iterable[Origin]) -> int:
        """Return the last sequence of `origin` that all `members` but this node have applied; 2^64 without
        others.
        """
        least = 2**64
        seen = set()  # of members that are not linked most have the same floors, and nothing else
        for member in members:
            if member == self._me:
                continue
            known = self._known.get(member, _NOTHING)
            if not known.applied:
                if id(known.bridged) in seen:
                    continue
                seen.add(id(known.bridged))
            least = min(least, self.applied(member, origin))
        return least
