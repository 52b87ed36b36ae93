"""Acknowledgements: which member has applied which updates, by the latest reports. Trimming, eviction and
admission rest on them (VIEWS.md, 19).

A member reports by its own STATUS, or by way of another: the `least` column of a STATUS holds for all members
listed in its `confirmed` table, so nodes that cannot reach each other still know what the other has. A linked
member reports for itself: from its first STATUS on, which replaces them, reports by others show only that it
runs.
An incarnation's own reports only grow; a new incarnation begins with nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import ConfirmedRow, FrontierRow

NEVER: Final = float("-inf")
PAST_MAX: Final = 8  # floors of one member by earlier reports; beyond, they are made one


_Floors = Mapping[Origin, int]  # sequences by origin, that were applied at least


@dataclass(slots=True)
class _Known:
    applied: dict[Origin, int] = field(default_factory=dict)
    # The same, as others said since its last STATUS: the last word of each, which grows, and earlier ones.
    bridged: dict[Origin, _Floors] = field(default_factory=dict)
    past: tuple[_Floors, ...] = ()
    durable: dict[Origin, int] = field(default_factory=dict)
    own_view: int = 0  # the highest that it told itself
    view: int = 0
    reporter: Origin | None = None
    heard: float = NEVER  # by itself, or from a report that is gone

    def floors(self) -> Iterator[_Floors]:
        """Yield all that others have said."""
        yield from self.bridged.values()
        yield from self.past


_NOTHING: Final = _Known()


@dataclass(slots=True)
class _Report:
    """The last word of one member on others. As long as it is on the same ones, only `least`, `at` and a few
    views change, and the others need not be gone through, who may be a thousand.
    """

    at: float
    vouched: dict[int, Origin]  # by node
    least: dict[Origin, int]  # what all of these had applied that are not linked: the highest reported
    epoch: int  # in which it was gone through
    view_max: int  # the latest view that was believed then, if a later one was reported; else 2^64


def _beyond(floors: _Floors, least: _Floors) -> _Floors:
    """Return those of `floors` that `least` is below."""
    return {origin: sequence for origin, sequence in floors.items() if sequence > least.get(origin, 0)}


class _Past:
    """Adds to what members keep of reports that are over. Most have the same, and share it."""

    def __init__(self) -> None:
        self._added: dict[tuple[int, int], tuple[tuple[_Floors, ...], _Floors, tuple[_Floors, ...]]] = {}
        self._beyond: dict[int, tuple[_Floors, _Floors]] = {}

    def beyond(self, floors: _Floors, least: _Floors) -> _Floors:
        """Return those of `floors` that `least`, the same in all calls, is below."""
        known = self._beyond.get(id(floors))
        if known is None:
            known = self._beyond[id(floors)] = floors, _beyond(floors, least)  # which keeps its id
        return known[1]

    def add(self, past: tuple[_Floors, ...], floors: _Floors) -> tuple[_Floors, ...]:
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
        self._epoch = 0  # a report of an earlier one is gone through again

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
        news: Mapping[Origin, FrontierRow] | None = None,
    ) -> None:
        """Take in a STATUS of `peer`. `confirmed`: its reports on others, as far as they are believed; none
        with a later view than `view_max`, or a wrong number would stay. `linked`: the incarnations that
        report for themselves. `changed`: those of `confirmed` that are not as they were in its STATUS before.
        `news`: with those, the same of `rows`.
        """
        known = self._of(peer)
        known.own_view = max(view, known.own_view)
        known.view, known.reporter, known.heard = known.own_view, peer, now
        known.bridged, known.past = {}, ()
        applied, durable = known.applied, known.durable
        before = self._reports.get(peer)
        grows = (
            before is not None
            and changed is not None
            and before.epoch == self._epoch
            and before.view_max >= view_max
        )
        if grows and news is not None and not changed:
            rows = news  # all others were taken in, and are as they were
        least = {}
        for origin, row in rows.items():
            if row.sequence > applied.get(origin, 0):
                applied[origin] = row.sequence
            if row.durable > durable.get(origin, 0):
                durable[origin] = row.durable
            if row.least:
                least[origin] = row.least
        if (
            grows
            and before is not None
            and changed is not None
            and self._keeps_report(before, changed, least)
        ):
            before.at = now
            for origin, sequence in least.items():
                if sequence > before.least.get(origin, 0):
                    before.least[origin] = sequence
            self._vouch(peer, changed, before, linked, view_max, named=before.vouched)
            return
        report = _Report(now, {}, least, self._epoch, 2**64)
        named = {} if before is None else before.vouched
        self._vouch(peer, confirmed, report, linked, view_max, named=named)
        if before is not None:
            vouched = report.vouched
            self._let_go(
                peer, before, [each for each in before.vouched.values() if vouched.get(each.node) != each]
            )
            del self._reports[peer]
        if report.vouched:
            self._reports[peer] = report

    @staticmethod
    def _keeps_report(report: _Report, changed: Iterable[ConfirmedRow], least: _Floors) -> bool:
        """Return whether a report only grows by what has changed: it is on no fewer members, and who is new
        to it may have all that it said before.
        """
        more = False
        for row in changed:
            vouched = report.vouched.get(row.node)
            if vouched is not None and (not row.view or vouched.incarnation != row.incarnation):
                return False
            more |= vouched is None
        return not more or not _beyond(report.least, least)

    def _vouch(
        self,
        peer: Origin,
        rows: Iterable[ConfirmedRow],
        report: _Report,
        linked: Container[Origin],
        view_max: int,
        *,
        named: Mapping[int, Origin],
    ) -> None:
        """Take in what a peer says of others in its `report`; `named`: members by node, to use again."""
        least, past, me, all_known = report.least, _Past(), self._me, self._known
        for row in rows:  # which may be a thousand, of each of a thousand peers
            if not row.view:
                continue
            node, incarnation = row.node, row.incarnation
            member = named.get(node)
            if member is None or member.incarnation != incarnation:
                member = Origin(node, incarnation)
            if member in (me, peer):
                continue
            report.vouched[node] = member
            known = all_known.get(member)
            if known is None:
                known = all_known[member] = _Known()
            if member in linked:
                continue
            view = row.view
            if view > view_max:
                report.view_max = view = view_max
            if view >= known.view:
                known.view, known.reporter = view, peer
            before = known.bridged.get(peer)
            if before is not least:
                known.bridged[peer] = least
                if before is not None:
                    known.past = past.add(known.past, past.beyond(before, least))

    def _let_go(self, peer: Origin, report: _Report, members: Iterable[Origin]) -> None:
        """Keep what a peer said of members that it says nothing of any more, and when: else these would seem
        to be silent since long ago.
        """
        past = _Past()
        for member in members:
            known = self._known.get(member)
            if known is not None:
                known.heard = max(known.heard, report.at)
                known.past = past.add(known.past, known.bridged.pop(peer, {}))

    def link_closed(self) -> None:
        """Note that fewer peers than before report for themselves."""
        self._epoch += 1

    def _of(self, life: Origin) -> _Known:
        known = self._known.get(life)
        if known is None:
            known = self._known[life] = _Known()
        return known

    def forget_hearsay(self) -> None:
        """Forget reports on others, since the reporter may be wrong. Members report anew."""
        for peer, report in self._reports.items():
            self._let_go(peer, report, report.vouched.values())
        self._reports.clear()
        for life, known in self._known.items():
            known.bridged, known.past = {}, ()
            known.view, known.reporter = known.own_view, life if known.own_view else None

    def keep(self, incarnations: Set[Origin]) -> None:
        """Forget all incarnations but `incarnations`."""
        for life in self._known.keys() - incarnations:
            del self._known[life]
            self._epoch += 1  # reports may still be on it
        for life in self._reports.keys() - incarnations:
            report = self._reports.pop(life)
            self._let_go(life, report, report.vouched.values())

    def applied(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        return max(known.applied.get(origin, 0), *(floors.get(origin, 0) for floors in known.floors()), 0)

    def durable(self, member: Origin, origin: Origin) -> int:
        """Return the last sequence of `origin` that `member` is known to have in a checkpoint."""
        return self._known.get(member, _NOTHING).durable.get(origin, 0)

    def all_applied(self, member: Origin) -> dict[Origin, int]:
        """Return the last sequence of each origin that `member` is known to have applied."""
        known = self._known.get(member, _NOTHING)
        applied = dict(known.applied)
        for floors in known.floors():
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
        for member in members:
            known = self._known.get(member, _NOTHING)
            if member == self._me or known.applied.get(origin, 0) >= least:
                continue
            applied = known.applied.get(origin, 0)
            for floors in known.floors():
                applied = max(applied, floors.get(origin, 0))
                if applied >= least:
                    break
            least = min(least, applied)
        return least
