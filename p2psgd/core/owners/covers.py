"""The contributions that updates of owners take into account: a part of the replica, as the weights are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.wire.cover import EVERY, NEW, NUMBER_MAX, CoverRow, pack_table, parse_table
from p2psgd.wire.messages import ORIGINS_MAX
from p2psgd.wire.reject import PeerError, RejectCode


class _Numbers(Mapping[Origin, int]):
    """The last number of each contributor of one owner. What is added to all of them, as most updates of a
    crowd do, is one addition.
    """

    def __init__(self, numbers: Mapping[Origin, int]) -> None:
        self.places = list(numbers)
        self._beyond = dict(numbers)  # `_every`
        self._every = 0
        self._beyond_max = max(numbers.values(), default=0)  # or more

    def __getitem__(self, contributor: Origin) -> int:
        return self._beyond[contributor] + self._every

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._beyond)

    def __len__(self) -> int:
        return len(self._beyond)

    def __contains__(self, contributor: object) -> bool:
        return contributor in self._beyond

    def exceeds(self, most: int) -> bool:
        """Return whether any number is above `most`."""
        if self._beyond_max + self._every > most:
            self._beyond_max = max(self._beyond.values(), default=0)
        return self._beyond_max + self._every > most

    def add_to_all(self, more: int) -> None:
        """Add to the numbers of all."""
        self._every += more

    def add(self, contributor: Origin, more: int) -> None:
        """Add to one number, which may become less."""
        self._set(contributor, self._beyond[contributor] + more)

    def append(self, contributor: Origin, number: int) -> None:
        """Give a contributor the next place."""
        self.places.append(contributor)
        self._set(contributor, number - self._every)

    def _set(self, contributor: Origin, beyond: int) -> None:
        self._beyond[contributor] = beyond
        self._beyond_max = max(self._beyond_max, beyond)


_NONE: Final = _Numbers({})


class Covers:
    """By owner the last number of each contributor that its updates take into account, which are applied here
    or in a snapshot. The contributors of an owner have places: the order in which its updates have named
    them.
    """

    def __init__(self, tables: Iterable[bytes | bytearray] = ()) -> None:
        """Begin with the tables that `pack` gave; PeerError if one cannot be."""
        self._numbers: dict[Origin, _Numbers] = {}
        self._origins: dict[Origin, Origin] = {}  # one of each, however many owners have its numbers
        for table in tables:
            self.take(table)

    def take(self, table: bytes | bytearray | memoryview) -> None:
        """Take in the table of one more owner; PeerError if it cannot be."""
        key, numbers = parse_table(table)
        owner = Origin(*key)
        if owner in self._numbers:
            raise PeerError(RejectCode.COVER, f"the cover of owner {owner.node:016x} came twice")
        self._numbers[owner] = _Numbers(
            {self._one(Origin(*contributor)): number for contributor, number in numbers.items()}
        )

    def _one(self, origin: Origin) -> Origin:
        return self._origins.setdefault(origin, origin)

    def pack(self) -> list[bytes]:
        """Return the table of each owner."""
        return [pack_table(owner, numbers.items()) for owner, numbers in self._numbers.items() if numbers]

    @property
    def owners(self) -> Iterable[Origin]:
        """Return the owners that have a table."""
        return self._numbers.keys()

    def numbers(self, owner: Origin) -> Mapping[Origin, int]:
        """Return the last number of each contributor that the updates of `owner` take into account."""
        return self._numbers.get(owner, _NONE)

    def check(self, owner: Origin, rows: Sequence[CoverRow]) -> None:
        """Raise PeerError if the next update of `owner` cannot have these rows."""
        numbers = self._numbers.get(owner, _NONE)
        places, new = numbers.places, set()
        for row in rows:
            if row.place == EVERY:
                known, before = not places or self._passes_last(numbers, rows), 0
            elif row.place == NEW:
                contributor, before = Origin(row.node, row.incarnation), 0
                known = contributor in numbers or contributor in new
                new.add(contributor)
            else:
                known = row.place >= len(places)
                before = 0 if known else numbers[places[row.place]]
            if known or before + row.more > NUMBER_MAX or len(places) + len(new) > ORIGINS_MAX:
                words = f"an update of owner {owner.node:016x} covers what it cannot: {tuple(row)}"
                raise PeerError(RejectCode.COVER, words)

    @staticmethod
    def _passes_last(numbers: _Numbers, rows: Sequence[CoverRow]) -> bool:
        """Return whether a first row of all takes a contributor that has no row of its own past the last
        number.
        """
        most = NUMBER_MAX - rows[0].more
        if not numbers.exceeds(most):
            return False
        apart = {row.place for row in rows}
        return any(numbers[each] > most for place, each in enumerate(numbers.places) if place not in apart)

    def note(self, owner: Origin, rows: Sequence[CoverRow]) -> None:
        """Note the rows of an update that is applied, and that `check` has passed."""
        numbers = self._numbers.get(owner)
        if numbers is None:
            numbers = self._numbers[owner] = _Numbers({})
        every = rows[0].more if rows and rows[0].place == EVERY else 0
        numbers.add_to_all(every)
        for row in rows:
            if row.place == NEW:
                numbers.append(self._one(Origin(row.node, row.incarnation)), row.more)
            elif row.place != EVERY:
                numbers.add(numbers.places[row.place], row.more - every)

    def rows(self, owner: Origin, reached: Mapping[Origin, int]) -> tuple[CoverRow, ...]:
        """Return the rows with which the next update of `owner` says that it has taken the contributions up
        to these numbers; none for those that are known.
        """
        numbers = self._numbers.get(owner, _NONE)
        places = numbers.places
        place = {contributor: place for place, contributor in enumerate(places)}
        more = {place[each]: number - numbers[each] for each, number in reached.items() if each in place}
        known = [CoverRow(each, more[each]) for each in sorted(more) if more[each]]
        new = [CoverRow(NEW, number, *each) for each, number in sorted(reached.items()) if each not in place]
        return (*shortened(known, len(places)), *new)


def shortened(rows: list[CoverRow], places: int) -> list[CoverRow]:
    """Return the rows of contributors that have places, one of all in place of most if that is shorter: where
    nodes are equally fast, an update takes one more contribution of each into account.
    """
    if not rows:
        return rows
    (every, _), *_ = Counter(row.more for row in rows).most_common(1)
    more = {row.place: row.more for row in rows}
    others = [CoverRow(place, more.get(place, 0)) for place in range(places) if more.get(place, 0) != every]
    return [CoverRow(EVERY, every), *others] if len(others) + 1 < len(rows) else rows
