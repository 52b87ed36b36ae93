"""Packed tables: whole, sorted, each row once, and nothing acknowledged that was not applied."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sized

import pytest
from hypothesis import given

from p2psgd.wire.messages import (
    CONFIRMED_BYTES,
    MEMBER_BYTES,
    NODE_BYTES,
    ROW_BYTES,
    ConfirmedRow,
    FrontierRow,
    MemberRow,
    pack_confirmed,
    pack_frontier,
    pack_members,
    pack_nodes,
    parse_confirmed,
    parse_frontier,
    parse_members,
    parse_nodes,
)
from p2psgd.wire.reject import PeerError, RejectCode
from tests.wire.messages import CONFIRMED, FORBIDDEN, MEMBERS, frontier_rows

Parser = Callable[[bytes], Sized]
TABLES = pytest.mark.parametrize(
    ("row_bytes", "parse"),
    [
        pytest.param(ROW_BYTES, parse_frontier, id="frontier"),
        pytest.param(CONFIRMED_BYTES, parse_confirmed, id="confirmed"),
        pytest.param(MEMBER_BYTES, parse_members, id="members"),
        pytest.param(NODE_BYTES, parse_nodes, id="forbidden"),
    ],
)


def refused(parse: Parser, table: bytes) -> str:
    with pytest.raises(PeerError) as caught:
        parse(table)
    assert caught.value.code is RejectCode.MESSAGE
    return str(caught.value)


@given(frontier_rows())
def test_a_frontier_survives_the_wire_in_order(rows: list[FrontierRow]) -> None:
    assert parse_frontier(pack_frontier(rows[::-1])) == rows
    assert len(pack_frontier(rows)) == ROW_BYTES * len(rows)


@given(CONFIRMED, MEMBERS, FORBIDDEN)
def test_the_other_tables_survive_the_wire_in_order(
    confirmed: list[ConfirmedRow], members: list[MemberRow], forbidden: list[int]
) -> None:
    assert parse_confirmed(pack_confirmed(confirmed)) == sorted(confirmed)
    assert parse_members(pack_members(members)) == sorted(members)
    assert parse_nodes(pack_nodes(forbidden)) == sorted(forbidden)


def test_the_columns_stand_where_the_specification_says() -> None:
    row = FrontierRow(node=1, incarnation=2, sequence=9, digest=4, trimmed_to=5, durable=6, least=7, steps=8)
    assert pack_frontier([row]) == struct.pack("<8Q", 1, 2, 9, 4, 5, 6, 7, 8)
    assert pack_confirmed([ConfirmedRow(node=1, incarnation=2, view=3)]) == struct.pack("<3Q", 1, 2, 3)
    assert pack_members([MemberRow(4, 5, 6), MemberRow(node=1, incarnation=2, since=3)]) == struct.pack(
        "<6Q", *range(1, 7)
    )
    assert pack_nodes([2, 1]) == struct.pack("<2Q", 1, 2)


@TABLES
def test_an_empty_table_has_no_rows(row_bytes: int, parse: Parser) -> None:
    assert parse(b"") == []


@TABLES
def test_a_table_with_part_of_a_row_is_refused(row_bytes: int, parse: Parser) -> None:
    whole = struct.pack(f"<{row_bytes // 8}Q", *range(1, 1 + row_bytes // 8))
    for length in {1, 8, row_bytes - 8, row_bytes - 1, row_bytes + 1} - {row_bytes, 0}:
        assert "not a multiple" in refused(parse, (whole * 2)[:length])


@TABLES
def test_rows_out_of_order_or_twice_are_refused(row_bytes: int, parse: Parser) -> None:
    width = row_bytes // 8
    one, two = (struct.pack(f"<{width}Q", number, *[1] * (width - 1)) for number in (1, 2))
    assert len(parse(one + two)) == 2
    assert "ascending" in refused(parse, two + one)
    assert "ascending" in refused(parse, one + one)
    assert "ascending" in refused(parse, one + two + two)


@pytest.mark.parametrize("parse", [parse_confirmed, parse_members])
def test_two_lives_of_a_node_are_not_members_of_one_view(parse: Parser) -> None:
    rows = [struct.pack("<3Q", 5, life, 1) for life in (1, 2)]
    assert "ascending" in refused(parse, b"".join(rows))


def test_two_lives_of_a_node_are_two_rows_of_a_frontier() -> None:
    rows = [FrontierRow(5, 1, 1, 0), FrontierRow(5, 2, 1, 0)]
    assert parse_frontier(pack_frontier(rows)) == rows


@pytest.mark.parametrize("column", ["trimmed_to", "durable", "least"])
def test_a_row_that_claims_more_than_was_applied_is_refused(column: str) -> None:
    row = FrontierRow(1, 1, 7, 9)
    assert parse_frontier(pack_frontier([row._replace(**{column: 7})]))
    assert "beyond its sequence" in refused(parse_frontier, pack_frontier([row._replace(**{column: 8})]))


def test_a_row_of_an_origin_without_updates_is_refused() -> None:
    assert "nothing was applied" in refused(parse_frontier, pack_frontier([FrontierRow(1, 1, 0, 0)]))
