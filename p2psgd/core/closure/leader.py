"""The leader of an evaluation: it deals the portions, and makes the table by which members add up their sums.

Any node leads that members report to, whether it has a trainer or not. Two that lead at once do no harm, and
neither does one that follows another: all that a leader knows comes from reports, and every table gives the
same total. So nothing here is agreed on, handed over or kept on disk. portions.py decides which member gets
which portion.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from p2psgd.core.closure.members import Members
from p2psgd.core.closure.portions import Dealer, Holder, Standing, Task, describe_difference
from p2psgd.core.closure.results import ResultLog
from p2psgd.core.closure.scales import corrected_limits
from p2psgd.core.closure.sums import Table
from p2psgd.core.effects import Alert, LogEvent
from p2psgd.core.frontier import Origin
from p2psgd.core.send import Outbound
from p2psgd.core.timing import Timing
from p2psgd.wire.evaluation import (
    ATTEMPTS_MAX,
    each_of,
    pack_exponents,
    pack_portions,
    parse_exponents,
    parse_portions,
    refusal,
)
from p2psgd.wire.fixed_point import NOTHING, Exponents
from p2psgd.wire.messages import (
    HELD_MAX,
    TEXT_MAX,
    EvaluationLease,
    EvaluationReport,
    EvaluationTable,
    Message,
)

FAILED_MAX: Final = 3  # members in a sentence
TABLES_MAX: Final = 2**64 - 1  # of an attempt: a table that a liar has sent may have any number

SendTo = Callable[[Origin, Message, float], bool]  # a member, which may be this node; and the time


class Leader:
    """The leader's part at one node; it does nothing while members report to another."""

    def __init__(
        self,
        members: Members,
        results: ResultLog,
        *,
        timing: Timing,
        groups: int,
        send: SendTo,
        out: Outbound,
        adopted: Callable[[], Table | None],
        counts: Counter[str],
        backups: bool,
    ) -> None:
        """`adopted` returns the table by which this node adds up as a member. `counts`: of what has happened,
        by name. `backups`: lease a portion to a second member if that has nothing else to do.
        """
        self.dealer: Dealer | None = None  # while this node leads
        self.highest = 0  # number of a table of this attempt that this node has made or heard of
        self._me = members.me
        self._members = members
        self._results = results
        self._timing = timing
        self._groups = groups
        self._send = send
        self._out = out
        self._adopted = adopted
        self._counts = counts
        self._backups = backups
        self._table: Table | None = None  # that this node has made
        self._overtook_at = -math.inf  # when a table was last made anew since another was above it

    def hear_report(self, member: Origin, report: EvaluationReport, now: float) -> None:
        """Take in a member's standing, and deal by it; PeerError unless all of it is right."""
        task = Task(
            report.evaluation,
            report.digest,
            report.portions,
            report.attempt,
            parse_exponents(report.limits, self._groups),
        )
        standing = self._parse_standing(report)
        if report.evaluation <= self._results.last:
            newest = self._results.announce(report.evaluation) or self._results.announce(self._results.last)
            if member != self._me and newest is not None:
                self._send(member, newest, now)
            return
        dealer = self.dealer
        if dealer is None or report.evaluation > dealer.task.evaluation:
            if not report.active:
                return
            begun = task.attempt > 0 or standing.added > 0
            dealer = self._begin_dealing(task, now, inherited=begun)
        elif report.evaluation < dealer.task.evaluation:
            return  # those that have asked for the later one have its result
        if not report.active:
            dealer.lose(member)
            self._deal(dealer, now)
            return
        if not dealer.task.fits(task) or not self._agree_on_limits(dealer.task, task):
            self._refuse_member(member, dealer, task, now)
            return
        if task.attempt > dealer.task.attempt:
            members = list(dealer.holders)
            dealer = self._begin_dealing(task, now, inherited=True)
            for other in members:
                dealer.report(other, self._nothing())
        dealer.report(member, standing if task.attempt == dealer.task.attempt else self._nothing())
        self._deal(dealer, now, asking=member)

    def tick(self, now: float) -> None:
        """Deal anew what members had that are gone."""
        if self.dealer is not None:
            self._deal(self.dealer, now)

    def end_through(self, last: int) -> None:
        """End the dealing of evaluations up to `last`, whose results are known."""
        if self.dealer is not None and self.dealer.task.evaluation <= last:
            self.dealer = None

    def overtake(self, message: EvaluationTable, now: float) -> None:
        """Make the table of this leader anew, above one that a leader before it has made and members keep. As
        two that lead at once would overtake each other, once in a failure timeout.
        """
        dealer, table = self.dealer, self._table
        if dealer is None or table is None or (message.number, message.leader) <= table.key:
            return
        if (message.evaluation, message.attempt) != (dealer.task.evaluation, dealer.task.attempt):
            return
        self.highest = max(self.highest, message.number)
        if now - self._overtook_at >= self._timing.failure_timeout_s:
            self._overtook_at, self._table = now, None
            self._deal(dealer, now)

    # -- dealing

    def _parse_standing(self, report: EvaluationReport) -> Standing:
        held = list(each_of(parse_portions(report.held, report.portions)))
        if len(report.checksums) != 8 * len(held) or len(held) > HELD_MAX or report.failed > report.portions:
            raise refusal(f"{len(held)} portions are held, with {len(report.checksums)} bytes of checksums")
        checksums = [
            int.from_bytes(report.checksums[at : at + 8], "little") for at in range(0, 8 * len(held), 8)
        ]
        return Standing(
            added=parse_portions(report.added, report.portions),
            held=dict(zip(held, checksums, strict=True)),
            exponents=parse_exponents(report.exponents, self._groups),
            failed=report.failed - 1 if report.failed else None,
            words=report.words,
        )

    def _nothing(self) -> Standing:
        return Standing(0, {}, np.full(self._groups, NOTHING, np.int16))

    def _begin_dealing(self, task: Task, now: float, *, inherited: bool) -> Dealer:
        """Deal an attempt. What another leader has begun waits for the reports of all."""
        wait_s = self._timing.status_s if inherited else 0.0
        self.dealer = Dealer(task, deals_from=now + wait_s, backups=self._backups)
        adopted = self._adopted()
        self._table, self.highest = None, 0 if adopted is None else adopted.key[0]
        return self.dealer

    @staticmethod
    def _agree_on_limits(ours: Task, theirs: Task) -> bool:
        return ours.attempt != theirs.attempt or bool(np.array_equal(ours.limits, theirs.limits))

    def _refuse_member(self, member: Origin, dealer: Dealer, task: Task, now: float) -> None:
        ours, first = dealer.task, min(dealer.holders, default=self._me)
        words = describe_difference(self._members.name(member), task, self._members.name(first), ours)
        dealer.lose(member)  # what it had added was of another sum
        self._out.emit(LogEvent("evaluation", words, None if member == self._me else member.node))
        self._send(member, self._error(task, words), now)

    def _error(self, task: Task, words: str) -> EvaluationLease:
        return EvaluationLease(
            evaluation=task.evaluation,
            attempt=task.attempt,
            limits=pack_exponents(task.limits),
            granted=b"",
            decided=b"",
            leases=b"",
            ahead=False,
            error=words[:TEXT_MAX],
        )

    def _deal(self, dealer: Dealer, now: float, *, asking: Origin | None = None) -> None:
        """Deal what there is, and answer the member that asks and all whose leases have changed."""
        for member in dealer.holders.keys() - self._members.linked(dealer.holders, now):
            dealer.lose(member)
        if not dealer.holders:  # those that ask next may begin the run anew, at an earlier evaluation
            self.dealer = None
            return
        if self._end_if_hopeless(dealer, now):
            return
        before = {member: tuple(holder.leases) for member, holder in dealer.holders.items()}
        if dealer.is_complete():
            limits = corrected_limits(dealer.task.limits, dealer.exponents)
            if limits is not None:
                self._begin_attempt(dealer, limits, now)
                return
        again = dealer.dealt.again
        dealer.deal(now)
        self._counts["portion leased again"] += dealer.dealt.again - again
        self._note_difference(dealer)
        for member, holder in list(dealer.holders.items()):
            if member == asking or tuple(holder.leases) != before[member]:
                self._send(member, self._lease(dealer.task, holder, ahead=dealer.plenty), now)
        if self.dealer is dealer and dealer.is_complete():
            self._make_table(dealer, now, asking=asking)

    def _lease(self, task: Task, holder: Holder, *, ahead: bool) -> EvaluationLease:
        return EvaluationLease(
            evaluation=task.evaluation,
            attempt=task.attempt,
            limits=pack_exponents(task.limits),
            granted=pack_portions(holder.taken, task.portions),
            decided=pack_portions(holder.decided, task.portions),
            leases=b"".join(portion.to_bytes(2, "little") for portion in holder.leases),
            ahead=ahead,
            error="",
        )

    def _begin_attempt(self, dealer: Dealer, limits: Exponents, now: float) -> None:
        """Make the evaluation again at limits that all its portions fit."""
        task = replace(dealer.task, attempt=dealer.task.attempt + 1, limits=limits)
        members = list(dealer.holders)
        if task.attempt > ATTEMPTS_MAX:
            words = (
                f"evaluation {task.evaluation} is given up after {ATTEMPTS_MAX} attempts: its numbers are of"
                " another size each time; is the closure deterministic?"
            )
            self._end(members, task, words, now)
            return
        self._counts["attempt at other limits"] += 1
        again = self._begin_dealing(task, now, inherited=False)
        again.dealt = dealer.dealt
        for member in members:
            again.report(member, self._nothing())
        again.deal(now)
        for member in members:
            if self.dealer is again and member in again.holders:
                self._send(member, self._lease(task, again.holders[member], ahead=again.plenty), now)

    def _end_if_hopeless(self, dealer: Dealer, now: float) -> bool:
        """End the evaluation everywhere if a portion is left that nobody can compute."""
        if not dealer.failures:
            return False
        if dealer.failed_at is None:
            dealer.failed_at = now
        hopeless = dealer.hopeless(dealer.holders)
        here = set(self._members.usable(now))
        late = now - dealer.failed_at >= self._timing.failure_timeout_s
        if hopeless is None or not dealer.holders or (here - dealer.holders.keys() and not late):
            return False
        portion, failures = hopeless
        named = [f"{self._members.name(member)}: {words}" for member, words in sorted(failures.items())]
        more = f"; and {len(named) - FAILED_MAX} more" if len(named) > FAILED_MAX else ""
        words = (
            f"portion {portion} of {dealer.task.portions} of evaluation {dealer.task.evaluation} cannot be"
            f" computed: {'; '.join(named[:FAILED_MAX])}{more}"
        )
        self._end(list(dealer.holders), dealer.task, words, now)
        return True

    def _end(self, members: list[Origin], task: Task, words: str, now: float) -> None:
        self.dealer = None
        self._out.emit(LogEvent("evaluation", words))
        for member in members:
            self._send(member, self._error(task, words), now)

    def _note_difference(self, dealer: Dealer) -> None:
        if dealer.differing is None or dealer.reported:
            return
        dealer.reported = True
        portion, one, other = dealer.differing
        self._out.emit(
            Alert(
                f"{self._members.name(one)} and {self._members.name(other)} have computed different numbers"
                f" for portion {portion} of evaluation {dealer.task.evaluation}, at the same point: the"
                " closure is not deterministic, or their libraries or processors differ. All members get the"
                " same sums, but these depend on which node computed what"
            )
        )

    def _make_table(self, dealer: Dealer, now: float, *, asking: Origin | None) -> None:
        """Name the members whose sums have all portions, and have them add up. Who asks gets the table again:
        what was sent before may have been lost with a link.
        """
        members = tuple(sorted(dealer.holders))
        sets = tuple(dealer.holders[member].added for member in members)
        table = self._table
        if table is not None and (table.members, table.sets) == (members, sets):
            if asking in members:
                self._send(asking, table.message(dealer.task), now)
            return
        self.highest = min(self.highest + 1, TABLES_MAX)
        exponents = pack_exponents(dealer.exponents)
        self._table = table = Table((self.highest, self._me.node), members, sets, exponents)
        message = table.message(dealer.task)
        for member in members:
            if member != self._me:
                self._send(member, message, now)
        if self._me in members:  # last, as it then asks the others at once
            self._send(self._me, message, now)
