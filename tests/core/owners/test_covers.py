"""Covers: what the updates of an owner take into account is counted as they say, and nothing impossible."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.core.frontier import Origin
from p2psgd.core.owners.covers import Covers
from p2psgd.wire.cover import EVERY, NEW, NUMBER_MAX, CoverRow, pack_cover, pack_table, unpack_cover
from p2psgd.wire.frames import ORIGINS_MAX
from p2psgd.wire.reject import PeerError, RejectCode

OWNER, OTHER = Origin(1, 10), Origin(2, 10)
ANN, BEN, CID = Origin(3, 10), Origin(4, 10), Origin(3, 11)  # Cid is Ann's next incarnation


def noted(*updates: Sequence[CoverRow]) -> Covers:
    """Return the covers as they are after these updates of OWNER."""
    covers = Covers()
    for rows in updates:
        covers.check(OWNER, rows)
        covers.note(OWNER, rows)
    return covers


ANN_3_BEN_1 = (CoverRow(NEW, 3, *ANN), CoverRow(NEW, 1, *BEN))


def test_contributors_have_places_in_the_order_in_which_updates_have_named_them() -> None:
    covers = noted(ANN_3_BEN_1, (CoverRow(1, 4), CoverRow(NEW, 2, *CID)), (CoverRow(2, 1),))
    assert dict(covers.numbers(OWNER)) == {ANN: 3, BEN: 5, CID: 3}
    assert dict(covers.numbers(OTHER)) == {}
    assert list(covers.owners) == [OWNER]


def test_rows_say_only_what_is_news() -> None:
    covers = noted(ANN_3_BEN_1)
    assert covers.rows(OWNER, {ANN: 3, BEN: 1}) == ()
    assert covers.rows(OWNER, {CID: 2, BEN: 7, ANN: 3}) == (CoverRow(1, 6), CoverRow(NEW, 2, *CID))
    assert covers.rows(OTHER, {BEN: 7, ANN: 3}) == (CoverRow(NEW, 3, *ANN), CoverRow(NEW, 7, *BEN))


@pytest.mark.parametrize(
    "rows",
    [
        (CoverRow(2, 1),),  # only two have places
        (CoverRow(ORIGINS_MAX - 1, 1),),
        (CoverRow(NEW, 1, *ANN),),  # who has one
        (CoverRow(NEW, 1, *CID), CoverRow(NEW, 1, *CID)),
        (CoverRow(0, NUMBER_MAX - 2),),
        (CoverRow(0, 1), CoverRow(NEW, 1, *CID), CoverRow(NEW, 2, *BEN)),
    ],
)
def test_rows_that_cannot_be_next_are_refused_and_change_nothing(rows: tuple[CoverRow, ...]) -> None:
    covers = noted(ANN_3_BEN_1)
    with pytest.raises(
        PeerError, match="an update of owner 0000000000000001 covers what it cannot"
    ) as caught:
        covers.check(OWNER, rows)
    assert caught.value.code is RejectCode.COVER
    assert dict(covers.numbers(OWNER)) == {ANN: 3, BEN: 1}


def test_the_last_number_may_be_reached() -> None:
    covers = noted(ANN_3_BEN_1, (CoverRow(0, NUMBER_MAX - 3),))
    assert covers.numbers(OWNER)[ANN] == NUMBER_MAX


def test_a_contributor_at_the_last_number_holds_up_no_row_of_all_others() -> None:
    covers = noted(ANN_3_BEN_1, (CoverRow(0, NUMBER_MAX - 3),))
    rows = (CoverRow(EVERY, 1), CoverRow(0, 0))
    covers.check(OWNER, rows)
    covers.note(OWNER, rows)
    assert dict(covers.numbers(OWNER)) == {ANN: NUMBER_MAX, BEN: 2}
    with pytest.raises(PeerError, match="covers what it cannot"):
        covers.check(OWNER, (CoverRow(EVERY, 1),))


def test_an_owner_has_a_last_contributor() -> None:
    covers = noted([CoverRow(NEW, 1, node, 1) for node in range(1, ORIGINS_MAX + 1)])
    covers.check(OWNER, [CoverRow(ORIGINS_MAX - 1, 1)])
    covers.check(OTHER, [CoverRow(NEW, 1, 5000, 1)])
    with pytest.raises(PeerError, match="covers what it cannot"):
        covers.check(OWNER, [CoverRow(NEW, 1, 5000, 1)])
    assert len(Covers(covers.pack()).numbers(OWNER)) == ORIGINS_MAX


CONTRIBUTORS = st.builds(Origin, st.integers(1, 5), st.integers(1, 3))
STEPS = st.lists(st.dictionaries(CONTRIBUTORS, st.integers(1, 9), max_size=4), max_size=8)


@given(STEPS)
def test_others_know_what_an_owner_has_taken_whatever_comes(steps: list[dict[Origin, int]]) -> None:
    """By its updates alone, or by a table of those before and the updates after."""
    taken: dict[Origin, int] = {}
    mine, theirs, joined = Covers(), Covers(), Covers()
    for number, more in enumerate(steps):
        for contributor, count in more.items():
            taken[contributor] = taken.get(contributor, 0) + count
        packed = pack_cover(0, mine.rows(OWNER, {each: taken[each] for each in more}))
        rows = unpack_cover(memoryview(packed))[1]
        for covers in (mine, theirs, joined):
            covers.check(OWNER, rows)
            covers.note(OWNER, rows)
        assert dict(theirs.numbers(OWNER)) == taken
        assert dict(joined.numbers(OWNER)) == taken
        if number % 2:
            joined = Covers(joined.pack())
    assert theirs.pack() == mine.pack() == joined.pack()


def test_tables_come_back_with_their_places() -> None:
    covers = noted(ANN_3_BEN_1)
    covers.note(OTHER, (CoverRow(NEW, 5, *ANN),))
    again = Covers(covers.pack())
    assert dict(again.numbers(OWNER)) == {ANN: 3, BEN: 1}
    again.note(OWNER, (CoverRow(1, 1),))
    assert again.numbers(OWNER)[BEN] == 2
    assert dict(again.numbers(OTHER)) == {ANN: 5}


def test_an_owner_whose_updates_cover_nothing_has_no_table() -> None:
    assert noted(()).pack() == []


def test_a_second_table_of_an_owner_is_refused() -> None:
    table = pack_table(OWNER, [(ANN, 3)])
    with pytest.raises(PeerError, match="the cover of owner 0000000000000001 came twice") as caught:
        Covers([table, pack_table(OTHER, [(ANN, 3)]), table])
    assert caught.value.code is RejectCode.COVER
