"""The exact sum of all members' sums: each owns a shard of the numbers, adds it up and gives it to all.

A table names the members and which portions each has in its sum. Under one table a member fetches its shard
of every other member's sum (reduce-scatter), and then the shards that the others have added up (all-gather):
2 (N - 1) / N numbers a weight each way. Fetching, and not sending, bounds what is on its way, and a link that
was lost costs what was on it. All numbers are integers, so the total does not depend on the order, on the
table, or on who made it: two tables at once would only be twice the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from p2psgd.core.closure.portions import Task
from p2psgd.core.frontier import Origin
from p2psgd.wire.evaluation import Kind, Numbers, Portions, pack_table
from p2psgd.wire.fixed_point import Sums
from p2psgd.wire.frames import EVALUATION_NUMBERS_MAX
from p2psgd.wire.messages import EvaluationFetch, EvaluationTable

PIECE_NUMBERS: Final = EVALUATION_NUMBERS_MAX  # in one answer: 1 MiB
WINDOW_PIECES: Final = 4  # asked of one peer and not there yet

Range = tuple[int, int]
TableKey = tuple[int, int]  # number and leader: of two tables of an attempt the higher one holds
Fetch = Callable[[Origin, EvaluationFetch], bool]
Give = Callable[[Origin, Numbers, Sums], None]


@dataclass(eq=False)
class ClosureMemory:
    """The memory that a trainer shares: `parts` int64 (P + 1,), its sum, which it writes, and `totals`, the
    sum of all, which it reads.
    """

    parts: Sums
    totals: Sums


def make_memory(weights: int) -> ClosureMemory:
    """Make memory that no trainer shares."""
    return ClosureMemory(np.zeros(weights + 1, np.int64), np.zeros(weights + 1, np.int64))


@dataclass(frozen=True)
class Table:
    """A table of members, which ascend, and of the portions that each has in its sum."""

    key: TableKey
    members: tuple[Origin, ...]
    sets: tuple[Portions, ...]
    exponents: bytes  # the highest of all portions

    def shard(self, member: Origin, count: int) -> Range:
        """Return the range of `count` numbers that a member owns."""
        place, size = self.members.index(member), len(self.members)
        return count * place // size, count * (place + 1) // size

    def message(self, task: Task) -> EvaluationTable:
        """Return the message with which members get this table of an attempt."""
        number, leader = self.key
        members, assignment = pack_table(self.members, self.sets, task.portions)
        return EvaluationTable(
            evaluation=task.evaluation,
            attempt=task.attempt,
            number=number,
            leader=leader,
            holders=members,
            assignment=assignment,
            exponents=self.exponents,
        )


@dataclass(slots=True)
class Pull:
    """The fetching of numbers from one peer, in order: from `next` to `asked` they are on their way."""

    next: int
    end: int
    asked: int = field(init=False)

    def __post_init__(self) -> None:
        self.asked = self.next

    @property
    def done(self) -> bool:
        """Return whether all are here."""
        return self.next == self.end

    def wants(self) -> Iterator[Range]:
        """Yield the pieces to ask for now, each as offset and count."""
        while self.asked < self.end and self.asked - self.next < WINDOW_PIECES * PIECE_NUMBERS:
            count = min(PIECE_NUMBERS, self.end - self.asked)
            yield self.asked, count
            self.asked += count

    def accept(self, offset: int, count: int) -> bool:
        """Return whether these numbers are the next ones, and take them as here."""
        if offset != self.next or offset + count > self.asked:
            return False  # asked for twice
        self.next += count
        return True


class TableSums:
    """The sums of one member under one table: `result` int64 (P + 1,) becomes the total."""

    def __init__(self, task: Task, table: Table, me: Origin, memory: ClosureMemory) -> None:
        self.task = task
        self.table = table
        self.result: Sums = np.empty(len(memory.parts), np.int64)
        self._memory = memory
        self._me = me
        count = len(memory.parts)
        self._begin, self._end = table.shard(me, count)
        others = [member for member in table.members if member != me]
        # Who has added nothing gives nothing: its memory still holds the sum of the evaluation before.
        givers = [member for member, portions in zip(table.members, table.sets, strict=True) if portions]
        self._parts = {member: Pull(self._begin, self._end) for member in others if member in givers}
        self._needed = max(1, len(givers))
        self._gives = me in givers
        self._totals = {member: Pull(*table.shard(member, count)) for member in others}
        self._added = [0] * -(-(self._end - self._begin) // PIECE_NUMBERS)  # sums, by piece of the shard
        self._asked: dict[int, set[Origin]] = {}  # who waits for which piece of the shard
        for piece in range(len(self._added)):
            if self._gives:
                self._add_own(piece)

    @property
    def done(self) -> bool:
        """Return whether the result is whole."""
        return all(pull.done for pull in self._totals.values()) and all(
            added == self._needed for added in self._added
        )

    @property
    def progress(self) -> int:
        """Return a number that rises with all that comes."""
        return sum(pull.next for pull in (*self._parts.values(), *self._totals.values()))

    def ask(self, fetch: Fetch, *, again: bool = False) -> None:
        """Ask for what comes next; `again`: also for what was asked for and has not come."""
        for kind, pulls in ((Kind.PART, self._parts), (Kind.TOTAL, self._totals)):
            for member, pull in pulls.items():
                if again:
                    pull.asked = pull.next
                for offset, count in pull.wants():
                    fetch(member, self._request(kind, offset, count))

    def _request(self, kind: Kind, offset: int, count: int) -> EvaluationFetch:
        number, leader = self.table.key
        return EvaluationFetch(
            kind=kind,
            evaluation=self.task.evaluation,
            attempt=self.task.attempt,
            table=number,
            leader=leader,
            offset=offset,
            count=count,
        )

    def _place(self, kind: Kind, offset: int) -> Numbers:
        return Numbers(kind, self.task.evaluation, self.task.attempt, *self.table.key, offset)

    def serve(self, peer: Origin, request: EvaluationFetch, give: Give) -> None:
        """Give a peer what it asks for, now or when it is whole; nothing for what is not its own."""
        if peer not in self._totals:
            return
        begin, end = request.offset, request.offset + request.count
        if request.kind == Kind.PART:
            if not self._gives:
                return
            first, last = self.table.shard(peer, len(self.result))
            if first <= begin and end <= last:
                give(peer, self._place(Kind.PART, begin), self._memory.parts[begin:end])
            return
        piece, rest = divmod(begin - self._begin, PIECE_NUMBERS)
        if rest or not 0 <= piece < len(self._added) or end != self._piece(piece)[1]:
            return
        if self._added[piece] == self._needed:
            give(peer, self._place(Kind.TOTAL, begin), self.result[begin:end])
        else:
            self._asked.setdefault(piece, set()).add(peer)

    def take(self, peer: Origin, place: Numbers, numbers: Sums, give: Give) -> None:
        """Take in what a peer gave; what was not asked for is left."""
        pulls = self._parts if place.kind is Kind.PART else self._totals
        pull = pulls.get(peer)
        begin, end = place.offset, place.offset + len(numbers)
        if place.kind is Kind.PART and end != min(begin + PIECE_NUMBERS, self._end):
            return  # a piece counts once, and whole
        if pull is None or not pull.accept(begin, len(numbers)):
            return
        if place.kind is Kind.TOTAL:
            self.result[begin:end] = numbers
            self._memory.totals[begin:end] = numbers
            return
        piece = (begin - self._begin) // PIECE_NUMBERS
        if self._added[piece]:
            self.result[begin:end] += numbers
        else:
            self.result[begin:end] = numbers
        self._added[piece] += 1
        if self._added[piece] == self._needed:
            self._memory.totals[begin:end] = self.result[begin:end]
            for waiting in sorted(self._asked.pop(piece, ())):
                give(waiting, self._place(Kind.TOTAL, begin), self.result[begin:end])

    def _add_own(self, piece: int) -> None:
        begin, end = self._piece(piece)
        self.result[begin:end] = self._memory.parts[begin:end]
        self._added[piece] = 1
        if self._needed == 1:
            self._memory.totals[begin:end] = self.result[begin:end]

    def _piece(self, piece: int) -> Range:
        begin = self._begin + piece * PIECE_NUMBERS
        return begin, min(begin + PIECE_NUMBERS, self._end)
