"""The portions of an evaluation as the member that leads the view deals them.

Portions are leased to members that ask, two at a time, so that none waits between two. When all are leased, a
member that has nothing to do gets one that another has had for longest (a backup task [Sandblaster 2012]).
The first answer counts: the leader grants it to that member, which then adds it to its sum, and no other
does. A member's sum is gone with it: its portions are dealt again.

All that it knows comes from reports, each of which has all of a member's standing. So another leader needs
nothing of this one. It waits a moment for the reports of all before it deals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from p2psgd.core.frontier import Origin
from p2psgd.wire.evaluation import Portions, each_of
from p2psgd.wire.fixed_point import NOTHING, Exponents
from p2psgd.wire.messages import LEASES_MAX


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """An attempt at an evaluation, with all that members must agree on."""

    evaluation: int
    digest: int
    portions: int
    attempt: int
    limits: Exponents

    def fits(self, other: Task) -> bool:
        """Return whether another asks for the same evaluation."""
        return (self.evaluation, self.digest, self.portions) == (
            other.evaluation,
            other.digest,
            other.portions,
        )

    @property
    def all(self) -> Portions:
        """Return the set of all portions."""
        return (1 << self.portions) - 1


def describe_difference(one: str, theirs: Task, other: str, ours: Task) -> str:
    """Return the sentence about two nodes that ask for an evaluation with different digests, or portions."""
    return (
        f"{one} asks for evaluation {theirs.evaluation} with digest {theirs.digest:016x} in {theirs.portions}"
        f" portions, {other} with {ours.digest:016x} in {ours.portions}: the point, the data or the number"
        " of portions differs, so their scripts, libraries or data do"
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """A member's report: the portions in its sum, those it holds, by checksum, and one that it failed at."""

    added: Portions
    held: Mapping[int, int]
    exponents: Exponents
    failed: int | None = None
    words: str = ""


@dataclass(slots=True)
class Holder:
    """A member that takes part, as the leader knows it."""

    added: Portions = 0  # in its sum,
    granted: Portions = 0  # and to be added,
    decided: Portions = 0  # of what it holds
    leases: dict[int, float] = field(default_factory=dict)  # and since when

    @property
    def taken(self) -> Portions:
        """Return the portions that are its own."""
        return self.added | self.granted


@dataclass(slots=True)
class Dealt:
    """Numbers for people: portions given to a second member, and answers that came second."""

    again: int = 0
    dropped: int = 0


class Dealer:
    """Deals the portions of one attempt; `backups`: a second time too, if somebody has nothing to do."""

    def __init__(self, task: Task, *, deals_from: float, backups: bool = True) -> None:
        self.task = task
        self.holders: dict[Origin, Holder] = {}
        self.exponents: Exponents = np.full(len(task.limits), NOTHING, np.int16)
        self.failures: dict[int, dict[Origin, str]] = {}
        self.failed_at: float | None = None  # the first time
        self.differing: tuple[int, Origin, Origin] | None = None  # two whose checksums of a portion differ
        self.reported = False  # to people
        self.dealt = Dealt()
        self._checksums: dict[int, tuple[int, Origin]] = {}
        self._deals_from = deals_from
        self._backups = backups

    @property
    def taken(self) -> Portions:
        """Return the portions that are somebody's."""
        taken = 0
        for holder in self.holders.values():
            taken |= holder.taken
        return taken

    def is_complete(self) -> bool:
        """Return whether each portion is in a sum."""
        added = 0
        for holder in self.holders.values():
            added |= holder.added
        return added == self.task.all

    @property
    def plenty(self) -> bool:
        """Return whether less than half of the portions are dealt: members need not add at once what they
        hold. Later all would wait for a slow one, which adds only between two portions.
        """
        dealt = self.taken
        for holder in self.holders.values():
            for portion in holder.leases:
                dealt |= 1 << portion
        return 2 * dealt.bit_count() < self.task.portions

    def report(self, member: Origin, standing: Standing) -> None:
        """Take in what a member says of itself."""
        holder = self.holders.setdefault(member, Holder())
        others = self._taken_by_others(member)
        self.exponents = np.maximum(self.exponents, standing.exponents)
        if standing.added & others:  # under another leader, or it was away: its sum counts for nothing
            holder.added = holder.granted = 0
        else:
            holder.added = standing.added
        holder.granted &= ~standing.added
        for portion in each_of(holder.granted):
            if portion not in standing.held:
                holder.granted ^= 1 << portion
        for portion, checksum in standing.held.items():
            self._compare(member, portion, checksum)
            if not (others | holder.added) >> portion & 1:
                holder.granted |= 1 << portion
            elif not holder.granted >> portion & 1:
                self.dealt.dropped += not holder.decided >> portion & 1
        holder.decided = 0
        for portion in standing.held:
            holder.decided |= 1 << portion
        if standing.failed is not None:
            self.failures.setdefault(standing.failed, {})[member] = standing.words
        self._end_leases(member, holder, standing.held)

    def _end_leases(self, member: Origin, holder: Holder, held: Collection[int]) -> None:
        for portion in list(holder.leases):
            mine = holder.taken >> portion & 1 or portion in held
            if mine or member in self.failures.get(portion, ()):
                del holder.leases[portion]

    def _compare(self, member: Origin, portion: int, checksum: int) -> None:
        first, whose = self._checksums.setdefault(portion, (checksum, member))
        if first != checksum and self.differing is None:
            self.differing = (portion, whose, member)

    def lose(self, member: Origin) -> None:
        """Deal anew what a member had, which is gone."""
        self.holders.pop(member, None)

    def deal(self, now: float) -> None:
        """Give each member something to compute, as far as there is."""
        if now < self._deals_from:
            return
        taken = self.taken
        leased = {portion for holder in self.holders.values() for portion in holder.leases}
        for holder in self.holders.values():
            for portion in [portion for portion in holder.leases if taken >> portion & 1]:
                del holder.leases[portion]  # another was faster; what is begun is dropped when it comes
        free = [p for p in range(self.task.portions) if not taken >> p & 1 and p not in leased]
        for count in range(1, LEASES_MAX + 1):  # each gets one before any gets two
            for member, holder in self._in_turn():
                if len(holder.leases) < count:
                    self._lease(member, holder, free, now)
        if self._backups:
            for member, holder in self._in_turn():
                if not holder.leases:
                    self._lease_again(member, holder, now)

    def _in_turn(self) -> list[tuple[Origin, Holder]]:
        return sorted(self.holders.items())

    def _lease(self, member: Origin, holder: Holder, free: list[int], now: float) -> None:
        for place, portion in enumerate(free):
            if member not in self.failures.get(portion, ()):
                holder.leases[portion] = now
                del free[place]
                return

    def _lease_again(self, member: Origin, holder: Holder, now: float) -> None:
        copies: dict[int, tuple[int, float]] = {}
        for other in self.holders.values():
            for portion, since in other.leases.items():
                count, first = copies.get(portion, (0, since))
                copies[portion] = (count + 1, min(first, since))
        wanted = [
            (copy, portion)
            for portion, copy in copies.items()
            if member not in self.failures.get(portion, ()) and not holder.decided >> portion & 1
        ]
        if wanted:
            _, portion = min(wanted)
            holder.leases[portion] = now
            self.dealt.again += 1

    def _taken_by_others(self, member: Origin) -> Portions:
        taken = 0
        for other, holder in self.holders.items():
            if other != member:
                taken |= holder.taken
        return taken

    def hopeless(self, members: Iterable[Origin]) -> tuple[int, dict[Origin, str]] | None:
        """Return a portion that none of these can compute, and why; None if there is no such portion."""
        here, taken = set(members), self.taken
        for portion, words in sorted(self.failures.items()):
            if not taken >> portion & 1 and here <= words.keys():
                return portion, words
        return None
