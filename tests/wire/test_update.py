"""UPDATE bodies of both encodings: header, cover and payload survive the wire, and nothing else is read.

What a node makes of an update that is right is tested in tests/core.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.contribution import encode_words
from p2psgd.wire.cover import NEW, CoverRow, pack_cover
from p2psgd.wire.frames import COVER_BYTES_MAX, UPDATE_HEADER_BYTES, FrameType, link_limits
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.update import (
    UpdateHeader,
    decode_update,
    pack_update,
    parse_update,
    without_cover,
)
from tests.wire.arrays import uint32
from tests.wire.messages import U64
from tests.wire.strategies import words_and_weights
from tests.wire.test_cover import rows

WEIGHTS = 1000
WORDS = uint32([700 << 1, 701 << 1 | 1, 999 << 1])
BASE, PAYLOAD = encode_words(WORDS, WEIGHTS)
COVER = (CoverRow(0, 2), CoverRow(NEW, 1, 0xB2, 2000))
PLAIN = UpdateHeader(0xA1, 1000, 1, 77, 5, 32, 3)
OWNERS = replace(PLAIN, base=BASE, cover=COVER)
ONLY_COVER = replace(PLAIN, magnitude=1, count=0, cover=COVER)
ENCODING_PLACE = 52


def decoded(body: bytes) -> NDArray[np.uint32]:
    return decode_update(*parse_update(body, WEIGHTS), WEIGHTS)


def refused(body: bytes, code: RejectCode, words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        decoded(body)
    assert caught.value.code is code


def sealed(body: bytes) -> bytes:
    """The same bytes with the checksum that belongs to them."""
    checksum = codec.crc32c(body[:60] + body[64:])
    return body[:60] + struct.pack("<I", checksum) + body[64:]


@given(words_and_weights(), st.tuples(U64, U64, U64, U64), st.integers(1, codec.MAGNITUDE_MAX), rows())
def test_an_update_with_a_cover_survives_the_wire(
    drawn: tuple[NDArray[np.uint32], int],
    numbers: tuple[int, int, int, int],
    magnitude: int,
    cover: tuple[CoverRow, ...],
) -> None:
    words, weights = drawn
    words = words[: codec.indices_max(weights)]
    node, incarnation, digest, steps = numbers
    base, payload = encode_words(words, weights)
    header = UpdateHeader(node, incarnation, 1, digest, steps, magnitude, len(words), base=base, cover=cover)
    body = pack_update(header, payload)
    assert len(body) <= link_limits(weights)[FrameType.UPDATE]
    found, back = parse_update(body, weights)
    assert (found, bytes(back)) == (header, payload)
    assert np.array_equal(decode_update(found, back, weights), words)


@given(rows())
def test_an_update_that_is_only_a_cover_changes_nothing(cover: tuple[CoverRow, ...]) -> None:
    header = replace(ONLY_COVER, cover=cover)
    found, payload = parse_update(pack_update(header, b""), WEIGHTS)
    assert found == header
    assert len(decode_update(found, payload, WEIGHTS)) == 0


def test_the_cover_stands_before_the_payload_and_counts_in_its_length() -> None:
    body = pack_update(OWNERS, PAYLOAD)
    cover = pack_cover(BASE, COVER)
    assert body[UPDATE_HEADER_BYTES:] == cover + PAYLOAD
    assert struct.unpack_from("<I", body, 48) == (len(cover) + len(PAYLOAD),)
    assert body[ENCODING_PLACE] == 2
    assert body == sealed(body)


def test_an_update_without_a_cover_is_encoding_1() -> None:
    payload = codec.encode(WORDS, WEIGHTS)
    body = pack_update(PLAIN, payload)
    assert body[ENCODING_PLACE] == 1
    assert body[UPDATE_HEADER_BYTES:] == payload
    found, back = parse_update(body, WEIGHTS)
    assert found == PLAIN
    assert np.array_equal(decode_update(found, back, WEIGHTS), WORDS)


@pytest.mark.parametrize("encoding", [0, 3, 255])
def test_another_encoding_is_refused(encoding: int) -> None:
    body = bytearray(pack_update(OWNERS, PAYLOAD))
    body[ENCODING_PLACE] = encoding
    refused(sealed(bytes(body)), RejectCode.ENCODING, f"encoding {encoding} of an update is not known")


@pytest.mark.parametrize("bit", range(0, 8 * len(pack_update(OWNERS, PAYLOAD)), 7))
def test_a_changed_bit_is_seen(bit: int) -> None:
    body = bytearray(pack_update(OWNERS, PAYLOAD))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError, match=r"checksum does not match|payload bytes, "):
        parse_update(body, WEIGHTS)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"count": 0}, RejectCode.PAYLOAD, "from weight 700 of 1000 on, with 0 indices"),
        ({"base": WEIGHTS}, RejectCode.PAYLOAD, "from weight 1000 of 1000 on, with 3 indices"),
        ({"base": 2**64 - 1}, RejectCode.PAYLOAD, "from weight 18446744073709551615 of 1000 on"),
        ({"base": -1}, RejectCode.PAYLOAD, "from weight -1 of 1000 on"),
        ({"base": 701}, RejectCode.PAYLOAD, "the payload of 3 indices in"),
        ({"count": 2}, RejectCode.PAYLOAD, "the payload of 2 indices in"),
        ({"count": 301}, RejectCode.PAYLOAD, "a payload of 301 indices, allowed are 1 to 300 for 300"),
        ({"count": 1001}, RejectCode.COUNT, "1001 indices, allowed are 0 to 1000"),
        ({"magnitude": 0}, RejectCode.MAGNITUDE, "magnitude 0 is not within 1 to 1048576"),
        ({"sequence": 0}, RejectCode.SEQUENCE, "sequence number is 0"),
        ({"cover": (CoverRow(0, 0),)}, RejectCode.COVER, "a row of it cannot be"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, int], code: RejectCode, words: str) -> None:
    refused(pack_update(replace(OWNERS, **changes), PAYLOAD), code, words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "payload"), [({"base": 1}, b""), ({"magnitude": 2}, b""), ({}, b"\x00"), ({}, PAYLOAD)]
)
def test_one_that_is_only_a_cover_has_one_form(changes: dict[str, int], payload: bytes) -> None:
    body = pack_update(replace(ONLY_COVER, **changes), payload)  # type: ignore[arg-type]
    refused(body, RejectCode.PAYLOAD, "an owner's update from weight [01] of 1000 on, with 0 indices")


def test_without_a_cover_an_update_changes_a_weight() -> None:
    refused(pack_update(replace(PLAIN, count=0), b""), RejectCode.COUNT, "0 indices, allowed are 1 to 1000")


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_a_cover_that_is_cut_off_is_refused(length: int) -> None:
    cover = pack_cover(BASE, COVER)[:length]
    body = bytearray(pack_update(PLAIN, cover))
    body[ENCODING_PLACE] = 2
    refused(sealed(bytes(body)), RejectCode.COVER, f"it has {length} bytes, which hold none")


def test_the_longest_update_with_the_longest_cover_is_allowed() -> None:
    weights = codec.WEIGHTS_MAX
    payload = codec.payload_bytes_max(codec.indices_max(weights))
    most = UPDATE_HEADER_BYTES + COVER_BYTES_MAX + payload
    limits = link_limits(weights)
    assert (limits[FrameType.UPDATE], limits[FrameType.SNAPSHOT_TAIL]) == (most, most)
    assert limits[FrameType.RING_UPDATE] < most  # in a ring nothing has a cover


def test_a_trainer_gets_an_update_without_the_rows_of_its_cover() -> None:
    body = pack_update(OWNERS, PAYLOAD)
    less = without_cover(OWNERS, body)
    assert len(less) < len(body)
    header, payload = parse_update(less, WEIGHTS)
    assert header == replace(OWNERS, cover=())
    assert np.array_equal(decode_update(header, payload, WEIGHTS), WORDS)


@pytest.mark.parametrize(
    ("header", "owners", "words"),
    [
        (PLAIN, True, "an update has no cover, and the ranges of the run have owners"),
        (OWNERS, False, "an update has a cover, and the ranges of the run do not have owners"),
    ],
)
def test_an_update_has_a_cover_just_where_ranges_have_owners(
    header: UpdateHeader, owners: bool, words: str
) -> None:
    body = pack_update(header, PAYLOAD)
    assert parse_update(body, WEIGHTS, owners=not owners) == parse_update(body, WEIGHTS)
    with pytest.raises(PeerError, match=words) as caught:
        parse_update(body, WEIGHTS, owners=owners)
    assert caught.value.code is RejectCode.ENCODING


@given(
    count=st.integers(0, 5),
    magnitude=st.integers(0, 3),
    encoding=st.integers(0, 3),
    payload=st.one_of(
        st.binary(max_size=40),
        st.builds(lambda base, each, rest: pack_cover(base, each) + rest, U64, rows(), st.binary(max_size=8)),
    ),
)
def test_any_bytes_are_an_update_or_refused(
    count: int, magnitude: int, encoding: int, payload: bytes
) -> None:
    body = bytearray(pack_update(replace(PLAIN, count=count, magnitude=magnitude), payload))
    body[ENCODING_PLACE] = encoding
    try:
        header, rest = parse_update(sealed(bytes(body)), WEIGHTS)
        words = decode_update(header, rest, WEIGHTS)
    except PeerError:
        return
    assert len(words) == header.count
    assert all(word >> 1 < WEIGHTS for word in words.tolist())
