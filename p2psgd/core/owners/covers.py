"""The contributions that updates of owners take into account: a part of the replica, as the weights are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from p2psgd.core.frontier import Origin
from p2psgd.wire.cover import EVERY, NEW, NUMBER_MAX, CoverRow, pack_table, parse_table
from p2psgd.wire.messages import ORIGINS_MAX
from p2psgd.wire.reject import PeerError, RejectCode


class Covers:
    """By owner the last number of each contributor that its updates take into account, which are applied here
    or in a snapshot. The contributors of an owner have places: the order in which its updates have named
    them.
    """

    def __init__(self, tables: Iterable[bytes | bytearray] = ()) -> None:
        """Begin with the tables that `pack` gave; PeerError if one cannot be."""
        self._numbers: dict[Origin, dict[Origin, int]] = {}
        self._places: dict[Origin, list[Origin]] = {}
        for table in tables:
            self.take(table)

    def take(self, table: bytes | bytearray | memoryview) -> None:
        """Take in the table of one more owner; PeerError if it cannot be."""
        key, numbers = parse_table(table)
        owner = Origin(*key)
        if owner in self._numbers:
            raise PeerError(RejectCode.COVER, f"the cover of owner {owner.node:016x} came twice")
        self._numbers[owner] = {Origin(*contributor): number for contributor, number in numbers.items()}
        self._places[owner] = list(self._numbers[owner])

    def pack(self) -> list[bytes]:
        """Return the table of each owner."""
        return [pack_table(owner, numbers.items()) for owner, numbers in self._numbers.items() if numbers]

    @property
    def owners(self) -> Iterable[Origin]:
        """Return the owners that have a table."""
        return self._numbers.keys()

    def numbers(self, owner: Origin) -> Mapping[Origin, int]:
        """Return the last number of each contributor that the updates of `owner` take into account."""
        return self._numbers.get(owner, {})

    def check(self, owner: Origin, rows: Sequence[CoverRow]) -> None:
        """Raise PeerError if the next update of `owner` cannot have these rows."""
        numbers, places = self._numbers.get(owner, {}), self._places.get(owner, [])
        new = set()
        for row in rows:
            if row.place == EVERY:
                known, before = not places, max(numbers.values(), default=0)
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

    def note(self, owner: Origin, rows: Sequence[CoverRow]) -> None:
        """Note the rows of an update that is applied, and that `check` has passed."""
        numbers, places = self._numbers.setdefault(owner, {}), self._places.setdefault(owner, [])
        every = rows[0].more if rows and rows[0].place == EVERY else 0
        for contributor in numbers if every else ():
            numbers[contributor] += every
        for row in rows:
            if row.place == NEW:
                places.append(Origin(row.node, row.incarnation))
                numbers[places[-1]] = row.more
            elif row.place != EVERY:
                numbers[places[row.place]] += row.more - every

    def rows(self, owner: Origin, reached: Mapping[Origin, int]) -> tuple[CoverRow, ...]:
        """Return the rows with which the next update of `owner` says that it has taken the contributions up
        to these numbers; none for those that are known.
        """
        numbers, places = self._numbers.get(owner, {}), self._places.get(owner, [])
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
