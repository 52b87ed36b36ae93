"""The contributions that updates of owners take into account: a part of the replica, as the weights are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from p2psgd.core.frontier import Origin
from p2psgd.wire.cover import NEW, NUMBER_MAX, CoverRow, pack_table, parse_table
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

    def check(self, owner: Origin, rows: Iterable[CoverRow]) -> None:
        """Raise PeerError if the next update of `owner` cannot have these rows."""
        numbers, places = self._numbers.get(owner, {}), self._places.get(owner, [])
        new = set()
        for row in rows:
            if row.place == NEW:
                contributor, before = Origin(row.node, row.incarnation), 0
                known = contributor in numbers or contributor in new
                new.add(contributor)
            else:
                known = row.place >= len(places)
                before = 0 if known else numbers[places[row.place]]
            if known or before + row.more > NUMBER_MAX or len(places) + len(new) > ORIGINS_MAX:
                words = f"an update of owner {owner.node:016x} covers what it cannot: {tuple(row)}"
                raise PeerError(RejectCode.COVER, words)

    def note(self, owner: Origin, rows: Iterable[CoverRow]) -> None:
        """Note the rows of an update that is applied, and that `check` has passed."""
        numbers, places = self._numbers.setdefault(owner, {}), self._places.setdefault(owner, [])
        for row in rows:
            if row.place == NEW:
                places.append(Origin(row.node, row.incarnation))
                numbers[places[-1]] = row.more
            else:
                numbers[places[row.place]] += row.more

    def rows(self, owner: Origin, reached: Mapping[Origin, int]) -> tuple[CoverRow, ...]:
        """Return the rows with which the next update of `owner` says that it has taken the contributions up
        to these numbers; none for those that are known.
        """
        numbers, places = self._numbers.get(owner, {}), self._places.get(owner, [])
        place = {contributor: place for place, contributor in enumerate(places)}
        known = sorted(place[each] for each in reached if each in place)
        rows = [CoverRow(each, reached[places[each]] - numbers[places[each]]) for each in known]
        rows += [CoverRow(NEW, number, *new) for new, number in sorted(reached.items()) if new not in place]
        return tuple(row for row in rows if row.more)
