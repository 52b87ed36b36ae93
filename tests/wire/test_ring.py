"""What travels in a ring beside its messages: headers that can be told apart, and nothing that cannot be."""

from __future__ import annotations

import struct
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.wire import codec
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import (
    GENERATION_MAX,
    RING_CHUNK_BYTES,
    RING_UPDATE_BYTES,
    ROUND_MAX,
    STATE_BYTES,
    RingChunkHeader,
    RingState,
    RingUpdateHeader,
    check_ring_chunk,
    pack_ring_chunk,
    pack_ring_state,
    pack_ring_update,
    parse_ring_chunk,
    parse_ring_state,
    parse_ring_update,
)
from tests.wire.messages import STANDING, U64

Header = TypeVar("Header", RingUpdateHeader, RingChunkHeader)
U32 = st.integers(0, 2**32 - 1)
CHUNK = RingChunkHeader(view=1, generation=2, round=3, bucket=4, hop=5, offset=6, contributors=7)
NUMBERS = struct.pack("<2f", 0.5, -1.0)


def as_bytes(parsed: tuple[Header, memoryview]) -> tuple[Header, bytes]:
    header, rest = parsed
    return header, bytes(rest)


@given(STANDING)
def test_a_standing_survives_the_wire(state: RingState) -> None:
    assert parse_ring_state(pack_ring_state(state)) == state


def test_the_fields_of_a_standing_stand_where_the_specification_says() -> None:
    state = RingState(generation=7, round=12, running=True, active=False, contributed=True)
    assert pack_ring_state(state) == struct.pack("<QQBBB", 7, 12, 1, 0, 1)


@pytest.mark.parametrize("length", [0, 1, STATE_BYTES - 1, STATE_BYTES + 1])
def test_a_standing_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(PeerError, match=f"of {length} bytes"):
        parse_ring_state(bytes(length))


@pytest.mark.parametrize("flag", [0, 1, 2])
def test_a_flag_is_0_or_1(flag: int) -> None:
    flags = [1, 1, 1]
    flags[flag] = 2
    with pytest.raises(PeerError, match="neither 0 nor 1"):
        parse_ring_state(struct.pack("<QQBBB", 7, 12, *flags))


@pytest.mark.parametrize(
    ("generation", "done"), [(GENERATION_MAX + 1, 0), (0, ROUND_MAX + 1), (2**64 - 1, 0)]
)
def test_a_standing_that_nobody_reaches_is_refused(generation: int, done: int) -> None:
    with pytest.raises(PeerError, match="cannot be"):
        parse_ring_state(struct.pack("<QQBBB", generation, done, 0, 0, 0))


@given(st.tuples(U64, U64, U64, U64), st.integers(0, 9), st.binary(min_size=1))
def test_a_part_survives_the_wire(tag: tuple[int, int, int, int], part: int, body: bytes) -> None:
    header = RingUpdateHeader(*tag, part=part, parts=part + 1)
    packed = pack_ring_update(header, body)
    assert len(packed) == RING_UPDATE_BYTES + len(body)
    assert as_bytes(parse_ring_update(packed)) == (header, body)


def test_an_empty_share_is_one_header() -> None:
    header = RingUpdateHeader(1, 2, 3, 4, part=0, parts=0)
    assert as_bytes(parse_ring_update(pack_ring_update(header, b""))) == (header, b"")


@pytest.mark.parametrize(
    ("part", "parts", "body"),
    [(0, 0, b"x"), (0, 1, b""), (1, 1, b"x"), (2, 1, b"x"), (1, 0, b""), (1, 0, b"x")],
)
def test_a_part_that_cannot_be_is_refused(part: int, parts: int, body: bytes) -> None:
    with pytest.raises(PeerError, match=f"part {part} of {parts}") as caught:
        parse_ring_update(pack_ring_update(RingUpdateHeader(1, 2, 3, 4, part, parts), body))
    assert caught.value.code is RejectCode.RING


@given(st.binary(max_size=RING_UPDATE_BYTES - 1))
def test_a_part_without_a_whole_header_is_refused(body: bytes) -> None:
    with pytest.raises(PeerError, match="shorter than its header"):
        parse_ring_update(body)


@given(st.tuples(U64, U64, U64, U32, U32, U64, U32), st.binary(min_size=1))
def test_a_chunk_survives_the_wire(fields: tuple[int, int, int, int, int, int, int], numbers: bytes) -> None:
    header = RingChunkHeader(*fields)
    body = pack_ring_chunk(header, numbers) + numbers
    check_ring_chunk(body)
    assert as_bytes(parse_ring_chunk(body)) == (header, numbers)


def test_the_fields_of_a_chunk_stand_where_the_specification_says() -> None:
    body = pack_ring_chunk(CHUNK, NUMBERS)
    assert body[:44] == struct.pack("<QQQIIQI", 1, 2, 3, 4, 5, 6, 7)
    assert body[44:] == struct.pack("<I", codec.crc32c(NUMBERS + body[:44]))
    assert len(body) == RING_CHUNK_BYTES


@pytest.mark.parametrize("bit", [0, 8 * 43, 8 * 44, 8 * 48, 8 * 55 + 7])
def test_a_changed_bit_of_a_chunk_is_seen(bit: int) -> None:
    body = bytearray(pack_ring_chunk(CHUNK, NUMBERS) + NUMBERS)
    check_ring_chunk(body)
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError, match="checksum"):
        check_ring_chunk(body)


@given(st.binary(max_size=RING_CHUNK_BYTES))
def test_a_chunk_without_numbers_is_refused(body: bytes) -> None:
    with pytest.raises(PeerError, match="holds no numbers"):
        parse_ring_chunk(body)
