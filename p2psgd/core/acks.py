"""Acknowledgements: which member has applied which updates, by the latest reports. Trimming, eviction and
admission rest on them (VIEWS.md, 19).

A member reports by its own STATUS, or by way of another: the `least` column of a STATUS holds for all members
listed in its `confirmed` table, so nodes that cannot reach each other still know what the other has. A linked
member reports for itself: from its first STATUS until its link closes, reports by others show only that it
runs.
An incarnation's own reports only grow; a new incarnation begins with nothing.

Each of a thousand peers may report on a thousand members. So a report is kept as the one table that it is,
and looked at when somebody asks for a member; taking in a STATUS costs no more than what has changed in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import ConfirmedRow, FrontierRow

NEVER: Final = float("-inf")
PAST_MAX: Final = 8  # floors of one member by reports that are over; beyond, they are made one
COHORTS_MAX: Final = 4  # of one report; beyond, all its members begin anew as one

Floors = Mapping[Origin, int]  # sequences by origin, that were applied at least


@dataclass(slots=True)
class _Known:
    applied: dict[Origin, int] = field(default_factory=dict)
    durable: dict[Origin, int] = field(default_factory=dict)
    own_view: int = 0  # the highest that it told itself
    speaks: bool = False  # it is linked and has reported: nobody else is believed on it
    # What reports that are over said of it since its own last one: floors, and the highest view and by which
    # peer. With its own view and itself from its last report on.
    past: tuple[Floors, ...] = ()
    view: int = 0
    reporter: Origin | None = None
    heard: float = NEVER  # by itself, or from a report that is over


_NOTHING: Final = _Known()


@dataclass(slots=True)
class _Report:
    """Holds what one peer says of others: the last view that each knows, and what all of them have applied.

    Members that it has named for longer may be known to have more than those that came later had. Each is in
    a cohort with others that have the same floors.
    """

    at: float = NEVER
    view_max: int = 0  # the latest view that is believed
    rows: Mapping[int, ConfirmedRow] = field(default_factory=dict)  # by node
    least: dict[Origin, int] = field(default_factory=dict)  # what it says of all of them now
    floors: dict[Origin, Floors] = field(default_factory=dict)  # by member: those of its cohort
    cohorts: list[dict[Origin, int]] = field(default_factory=list)

    def view(self, member: Origin) -> int:
        """Return the last view that a member in `floors` knows."""
        return min(self.rows[member.node].view, self.view_max)

    def rise(self, least: Floors) -> None:
        """Note that all members have applied `least`."""
        for cohort in self.cohorts:
            for origin, sequence in least.items():
                if sequence > cohort.get(origin, 0):
                    cohort[origin] = sequence


def _beyond(floors: Floors, least: Floors) -> Floors:
    """Return those of `floors` that `least` is below."""
    return {origin: sequence for origin, sequence in floors.items() if sequence > least.get(origin, 0)}


class _Past:
    """Adds to what members keep of reports that are over. Most have the same, and share it."""

    def __init__(self) -> None:
        self._added: dict[tuple[int, int], tuple[tuple[Floors, ...], Floors, tuple[Floors, ...]]] = {}
        self._beyond: dict[int, tuple[Floors, Floors]] = {}

    def beyond(self, floors: Floors, least: Floors) -> Floors:
        """Return those of `floors` that `least`, the same in all calls, is below."""
        known = self._beyond.get(id(floors))
        if known is None:
            known = self._beyond[id(floors)] = floors, _beyond(floors, least)  # which keeps its id
        return known[1]

    def add(self, past: tuple[Floors, ...], floors: Floors) -> tuple[Floors, ...]:
        """Return `past` and `floors`, as one if there are many."""
        if not floors:
            return past
        known = self._added.get((id(past), id(floors)))
        if known is None:
            added = (*past, floors)
            if len(added) > PAST_MAX:
                merged: dict[Origin, int] = {}
                for each in added:
                    for origin, sequence in each.items():
                        merged[origin] = max(sequence, merged.get(origin, 0))
                added = (merged,)
            known = self._added[id(past), id(floors)] = past, floors, added  # both keep their ids
        return known[2]


class Acknowledgements:
    """The acknowledgements of each other incarnation."""

    def __init__(self, me: Origin) -> None:
        self._me = me
        self._known: dict[Origin, _Known] = {}
        self._reports: dict[Origin, _Report] = {}

    def on_status(
        self,
        peer: Origin,
        rows: Mapping[Origin, FrontierRow],
        view: int,
        confirmed: Mapping[int, ConfirmedRow],
        now: float,
        *,
        view_max: int = 2**64,
        changed: Collection[ConfirmedRow] | None = None,
        news: Mapping[Origin, FrontierRow] | None = None,
    ) -> None:
        """Take in a STATUS of `peer`. `confirmed`: its reports on others by node, as far as they are
        believed; none with a later view than `view_max`. `changed`: those of `confirmed` that are not as they
        were in its STATUS before; None if it may also lack some. `news`: with those, the same of `rows`.
        """
        known = self._of(peer)
        known.own_view = max(view, known.own_view)
        known.view, known.reporter, known.heard = known.own_view, peer, now
        known.speaks, known.past = True, ()
        report = self._reports.get(peer)
        if report is None:
            report, changed = _Report(), None
        newcomers = self._revise(peer, report, confirmed, changed)
        if changed is not None and news is not None and not newcomers:
            rows = news  # all others were taken in, and are as they were
        else:
            report.least = {}
        applied, durable, least = known.applied, known.durable, {}
        for origin, row in rows.items():
            if row.sequence > applied.get(origin, 0):
                applied[origin] = row.sequence
            if row.durable > durable.get(origin, 0):
                durable[origin] = row.durable
            if row.least:
                least[origin] = report.least[origin] = row.least
            else:
                report.least.pop(origin, None)
        report.at, report.view_max, report.rows = now, max(view_max, report.view_max), confirmed
        report.rise(least)
        if newcomers:
            self._take_in(report, newcomers, least)
        if report.floors:
            self._reports[peer] = report
        else:
            self._reports.pop(peer, None)

    def _revise(
        self,
        peer: Origin,
        report: _Report,
        confirmed: Mapping[int, ConfirmedRow],
        changed: Iterable[ConfirmedRow] | None,
    ) -> list[Origin]:
        """Let go of members that a peer reports on no more; return those that are new to its `report`."""
        before, gone = report.rows, []
        if changed is None:
            changed = [row for node, row in confirmed.items() if before.get(node) != row]
            gone = [row for node, row in before.items() if node not in confirmed]
        newcomers = []
        for row in changed:  # which may be a thousand
            old = before.get(row.node)
            if old is not None and old.incarnation == row.incarnation and old.view and row.view:
                continue
            if old is not None:
                gone.append(old)
            member = Origin(row.node, row.incarnation)
            if row.view and member not in (self._me, peer):
                newcomers.append(member)
        self._let_go(peer, report, [Origin(row.node, row.incarnation) for row in gone])
        return newcomers

    def _take_in(self, report: _Report, newcomers: Iterable[Origin], least: Floors) -> None:
        """Add members to a report that now says `least` of all, and may have said more of those before."""
        cohorts = report.cohorts
        if not cohorts or _beyond(cohorts[-1], least):
            if len(cohorts) == COHORTS_MAX:
                past = _Past()
                for member, floors in report.floors.items():
                    known = self._of(member)
                    if not known.speaks:
                        known.past = past.add(known.past, past.beyond(floors, least))
                newcomers = [*report.floors, *newcomers]
                cohorts.clear()
            cohorts.append(dict(least))
        report.floors.update(dict.fromkeys(newcomers, cohorts[-1]))

    def _let_go(self, peer: Origin, report: _Report, members: Iterable[Origin]) -> None:
        """Keep what a peer said of members that it says nothing of any more, and when: else these would seem
        to be silent since long ago.
        """
        past = _Past()
        for member in members:
            floors = report.floors.pop(member, None)
            if floors is None:
                continue
            known = self._of(member)
            known.heard = max(known.heard, report.at)
            if known.speaks:
                continue
            known.past = past.add(known.past, past.beyond(floors, {}))  # a copy, as its cohort still rises
            view = report.view(member)
            if view >= known.view:
                known.view, known.reporter = view, peer

    def link_closed(self, peer: Origin) -> None:
        """Note that a peer no longer reports for itself. Of what others said of it before, the last word
        counts: it has said since what it has.
        """
        known = self._known.get(peer)
        if known is None or not known.speaks:
            return
        known.speaks = False
        for report in self._reports.values():
            if report.floors.pop(peer, None) is not None:
                self._take_in(report, [peer], report.least)

    def _of(self, life: Origin) -> _Known:
        known = self._known.get(life)
        if known is None:
            known = self._known[life] = _Known()
        return known

    def forget_hearsay(self) -> None:
        """Forget reports on others, since the reporter may be wrong. Members report anew."""
        for peer, report in self._reports.items():
            self._let_go(peer, report, [*report.floors])
        self._reports.clear()
        for life, known in self._known.items():
            known.past = ()
            known.view, known.reporter = known.own_view, life if known.own_view else None

    def keep(self, incarnations: Set[Origin]) -> None:
        """Forget all incarnations but `incarnations`."""
        for life in self._reports.keys() - incarnations:
            report = self._reports.pop(life)
            self._let_go(life, report, [*report.floors])
        for life in self._known.keys() - incarnations:
            del self._known[life]

    def _floors(self, member: Origin, known: _Known) -> list[Floors]:
        """Return all that is known of what a member has applied, by itself and by others."""
        floors: list[Floors] = [known.applied, *known.past] if known.applied else [*known.past]
        if not known.speaks:
            floors += [report.floors[member] for report in self._reports.values() if member in report.floors]
        return floors

    def applied(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        return max((floors.get(origin, 0) for floors in self._floors(member, known)), default=0)

    def durable(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have in a checkpoint."""
        return self._known.get(member, _NOTHING).durable.get(origin, 0)

    def all_applied(self, member: Origin) -> dict[Origin, int]:
        """Return the last sequence of each origin that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        applied: dict[Origin, int] = {}
        for floors in self._floors(member, known):
            for origin, sequence in floors.items():
                applied[origin] = max(sequence, applied.get(origin, 0))
        return applied

    def view(self, member: Origin) -> int:
        """Return the highest view number that `member` is known to know."""
        return self.latest(member)[0]

    def reporter(self, member: Origin) -> Origin | None:
        """Return the member that last reported that view: `member` itself, or one whose frontier covers all
        that the log of `member` had trimmed by then.
        """
        return self.latest(member)[1]

    def latest(self, member: Origin) -> tuple[int, Origin | None]:
        """Return the highest view number that `member` is known to know, and who reported that last."""
        known = self._known.get(member, _NOTHING)
        view, reporter, at = known.view, known.reporter, NEVER
        if not known.speaks:
            for peer, report in self._reports.items():
                if member in report.floors and (report.view(member), report.at) >= (view, at):
                    view, reporter, at = report.view(member), peer, report.at
        return view, reporter

    def heard(self, member: Origin) -> float:
        """Return the time of the last report on `member`, its own or another's."""
        reports = (report.at for report in self._reports.values() if member in report.floors)
        return max(self.heard_itself(member), max(reports, default=NEVER))

    def heard_itself(self, member: Origin) -> float:
        """Return the time of its own last report, or of one that is over: it needs no look at all others'."""
        return self._known.get(member, _NOTHING).heard

    def floors_of(self, members: Iterable[Origin]) -> list[list[Floors]]:
        """Return all that is known of what each of `members` but this node has applied. Members that are
        known by the same reports alone, as most of a crowd are, have one entry.
        """
        found = {}
        for member in members:
            if member == self._me:
                continue
            floors = self._floors(member, self._known.get(member, _NOTHING))
            found[tuple(map(id, floors))] = floors
        return [*found.values()]

    def stable(self, origin: Origin, members: Iterable[Origin]) -> int:
        """Return the last sequence of `origin` that all `members` but this node have applied; 2^64 without
        others.
        """
        return stable_by(self.floors_of(members), origin)


def stable_by(members: Iterable[Iterable[Floors]], origin: Origin) -> int:
    """Return the last sequence of `origin` that all members with these floors have applied; 2^64 without
    members.
    """
    least = 2**64
    for floors in members:
        applied = 0
        for each in floors:
            applied = max(applied, each.get(origin, 0))
            if applied >= least:
                break
        least = min(least, applied)
    return least
