"""Covers: rows and tables survive the wire, and nothing that cannot be gets past it."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.wire.cover import (
    EVERY,
    NEW,
    NO_COVER_BYTES,
    NUMBER_MAX,
    NUMBERS_MAX,
    CoverRow,
    pack_cover,
    pack_table,
    parse_table,
    unpack_cover,
)
from p2psgd.wire.frames import COVER_BYTES_MAX, ORIGINS_MAX
from p2psgd.wire.reject import PeerError, RejectCode
from tests.wire.bombs import bombs
from tests.wire.messages import U64

BASE_MAX = 2**31 - 1
U64_MAX = 2**64 - 1
MEMORY_MAX = 512 * 1024
NODES = st.one_of(st.integers(1, 9), st.integers(1, U64_MAX))
NUMBERS = st.one_of(st.integers(1, 9), st.integers(1, NUMBER_MAX))
PLACES = st.sets(st.one_of(st.integers(0, 9), st.integers(0, ORIGINS_MAX - 1)), max_size=6)


@st.composite
def rows(draw: st.DrawFn) -> tuple[CoverRow, ...]:
    """Rows of known contributors in the order of their places, then those of new ones."""
    known = [CoverRow(place, draw(NUMBERS)) for place in sorted(draw(PLACES))]
    new = st.builds(CoverRow, st.just(NEW), NUMBERS, NODES, U64)
    return (*known, *draw(st.lists(new, max_size=3)))


def packed(numbers: Any) -> memoryview:
    """A cover whose bytes are right, whatever is in it."""
    body = msgpack.packb(numbers)
    return memoryview(struct.pack("<H", len(body)) + body)


def refused(payload: memoryview, words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        unpack_cover(payload)
    assert caught.value.code is RejectCode.COVER
    assert str(caught.value).startswith("an owner's cover is refused: ")


@given(st.integers(0, BASE_MAX), rows(), st.binary(max_size=20))
def test_a_cover_survives_the_wire(base: int, each: tuple[CoverRow, ...], rest: bytes) -> None:
    found = unpack_cover(memoryview(pack_cover(base, each) + rest))
    assert (found[0], found[1], bytes(found[2])) == (base, each, rest)


def test_the_numbers_of_a_cover_stand_where_the_specification_says() -> None:
    cover = pack_cover(17, [CoverRow(0, 2), CoverRow(3, 1), CoverRow(NEW, 5, 0xB2, 2000)])
    body = msgpack.packb([17, 0, 2, 3, 1, -1, 5, 0xB2, 2000])
    assert cover == struct.pack("<H", len(body)) + body


def test_a_cover_without_rows_has_at_most_eight_bytes() -> None:
    assert len(pack_cover(BASE_MAX, ())) == NO_COVER_BYTES


def test_the_longest_cover_fits() -> None:
    new = [CoverRow(NEW, NUMBER_MAX, U64_MAX - each, U64_MAX) for each in range(ORIGINS_MAX)]
    cover = pack_cover(BASE_MAX, new)
    assert len(cover) <= COVER_BYTES_MAX
    assert unpack_cover(memoryview(cover))[1] == tuple(new)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], "it is an array of 0 numbers, allowed are 1 to 4099"),
        ([0] * (NUMBERS_MAX + 1), "it is an array of 4100 numbers, allowed are 1 to 4099"),
        ({}, "it is not an array of numbers in MessagePack"),
        (7, "it is not an array of numbers in MessagePack"),
        ([0, [1]], "it is not an array of numbers in MessagePack: 1 exceeds max_array_len"),
        ([0, {1: 1}], "it is not an array of numbers in MessagePack: 1 exceeds max_map_len"),
        ([0, "1", 1], "it is not an array of numbers in MessagePack: 1 exceeds max_str_len"),
        ([0, b"1", 1], "it is not an array of numbers in MessagePack: 1 exceeds max_bin_len"),
        (
            [0, msgpack.ExtType(5, b"1")],
            "it is not an array of numbers in MessagePack: 2 exceeds max_ext_len",
        ),
        ([0, True, 1], "it is not one array of integers"),
        ([0, 1.0, 1], "it is not one array of integers"),
        ([None], "it is not one array of integers"),
        ([0, 1], "its last row is not whole"),
        ([0, NEW, 1, 7], "its last row is not whole"),
        ([0, 1, 0], r"a row of it cannot be: \(1, 0, 0, 0\)"),
        ([0, 1, -1], r"a row of it cannot be: \(1, -1, 0, 0\)"),
        ([0, 1, NUMBER_MAX + 1], "a row of it cannot be"),
        ([0, EVERY, 0], r"a row of it cannot be: \(-2, 0, 0, 0\)"),
        ([0, 1, 1, EVERY, 1], r"a row of it cannot be: \(-2, 1, 0, 0\)"),
        ([0, -3, 1], r"a row of it cannot be: \(-3, 1, 0, 0\)"),
        ([0, ORIGINS_MAX, 1], "a row of it cannot be"),
        ([0, 3, 1, 3, 1], "a row of it cannot be"),
        ([0, 3, 1, 2, 1], "a row of it cannot be"),
        ([0, NEW, 1, 7, 7, 0, 1], r"a row of it cannot be: \(0, 1, 0, 0\)"),
        ([0, NEW, 1, 0, 7], r"a row of it cannot be: \(-1, 1, 0, 7\)"),
        ([0, NEW, 1, 7, -7], r"a row of it cannot be: \(-1, 1, 7, -7\)"),
        ([0, NEW, 0, 7, 7], r"a row of it cannot be: \(-1, 0, 7, 7\)"),
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers: Any, words: str) -> None:
    refused(packed(numbers), words)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "it has 0 bytes, which hold none"),
        (b"\x02", "it has 1 bytes, which hold none"),
        (b"\x00\x00\x91\x00", "it has 4 bytes, which hold none"),
        (b"\x03\x00\x91\x00", "it has 4 bytes, which hold none"),
        (struct.pack("<H", COVER_BYTES_MAX) + bytes(COVER_BYTES_MAX), "it has 32770 bytes, which hold none"),
        (b"\x01\x00\x91", "it is not an array of numbers in MessagePack: No more data to unpack"),
        (b"\x05\x00\xdd\xff\xff\xff\xff", "it is an array of 4294967295 numbers"),
        (b"\x03\x00\x91\x00\x00", "it is not one array of integers"),
        (b"\x02\x00\x91\xc1", "it is not an array of numbers in MessagePack"),
    ],
)
def test_bytes_that_hold_no_cover_are_refused(payload: bytes, words: str) -> None:
    refused(memoryview(payload), words)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_cover_or_refused(payload: bytes, whole: bool) -> None:
    if whole:  # its length at least is right
        payload = struct.pack("<H", len(payload)) + payload
    try:
        base, each, rest = unpack_cover(memoryview(payload))
    except PeerError:
        return
    again = pack_cover(base, each)  # MessagePack may have been wider
    assert unpack_cover(memoryview(again))[:2] == (base, each)
    assert len(again) + len(rest) <= len(payload)


def test_messagepack_bombs_are_refused_and_cost_no_memory() -> None:
    nested = b"\xdc\x10\x01" * (COVER_BYTES_MAX // 3)
    for bomb in (nested[: COVER_BYTES_MAX - 2], *bombs(COVER_BYTES_MAX - 2, 4)):
        body = memoryview(struct.pack("<H", len(bomb)) + bomb)
        tracemalloc.start()
        refused(body, "an owner's cover is refused")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY_MAX, (bomb[:20], peak)


TABLES = st.dictionaries(st.tuples(NODES, U64), NUMBERS, min_size=1, max_size=6)


@given(st.tuples(U64, U64), TABLES)
def test_a_table_survives_the_wire_in_its_order(
    owner: tuple[int, int], numbers: dict[tuple[int, int], int]
) -> None:
    found, back = parse_table(pack_table(owner, numbers.items()))
    assert found == owner
    assert list(back.items()) == list(numbers.items())  # the order is that of places


def test_the_columns_of_a_table_stand_where_the_specification_says() -> None:
    assert pack_table((1, 2), [((3, 4), 5), ((6, 7), 8)]) == struct.pack("<8Q", 1, 2, 3, 4, 5, 6, 7, 8)


def test_the_longest_table_fits_and_one_row_more_is_refused() -> None:
    numbers = [((each, 0), NUMBER_MAX) for each in range(1, ORIGINS_MAX + 2)]
    table = pack_table((1, 1), numbers[:-1])
    assert len(table) <= COVER_BYTES_MAX
    assert len(parse_table(table)[1]) == ORIGINS_MAX
    with pytest.raises(PeerError, match="a table of 1025 rows names a contributor twice, or too many"):
        parse_table(pack_table((1, 1), numbers))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((1, 2), "a table of 16 bytes is not whole"),
        ((1, 2, 3), "a table of 24 bytes is not whole"),
        ((1, 2, 3, 4, 5, 6), "a table of 48 bytes is not whole"),
        ((1, 2, 3, 4, 5, 3, 4, 6), "a table of 2 rows names a contributor twice, or too many"),
        ((1, 2, 0, 4, 5), "a table has a row that cannot be"),
        ((1, 2, 3, 4, 0), "a table has a row that cannot be"),
        ((1, 2, 3, 4, NUMBER_MAX + 1), "a table has a row that cannot be"),
    ],
)
def test_a_table_that_cannot_be_is_refused(numbers: tuple[int, ...], words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        parse_table(struct.pack(f"<{len(numbers)}Q", *numbers))
    assert caught.value.code is RejectCode.COVER


@given(st.binary(max_size=100))
def test_any_bytes_are_a_table_or_refused(body: bytes) -> None:
    try:
        owner, numbers = parse_table(body)
    except PeerError:
        return
    assert pack_table(owner, numbers.items()) == body
