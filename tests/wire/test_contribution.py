"""Contributions: they survive the wire, whole or not at all, and bytes of any kind are safe."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.contribution import (
    ContributionHeader,
    decode_words,
    encode_words,
    pack_contribution,
    parse_contribution,
)
from p2psgd.wire.cover import NUMBER_MAX
from p2psgd.wire.frames import CONTRIBUTION_HEADER_BYTES, FrameType, link_limits
from p2psgd.wire.reject import PeerError, RejectCode
from tests.wire.arrays import uint32
from tests.wire.strategies import words_and_weights

WEIGHTS = 1000
WORDS = uint32([700 << 1, 701 << 1 | 1, 999 << 1])
BASE, PAYLOAD = encode_words(WORDS, WEIGHTS)
HEADER = ContributionHeader(number=3, magnitude=32, base=BASE, count=len(WORDS))
BODY = pack_contribution(HEADER, PAYLOAD)
NUMBERS = st.integers(1, NUMBER_MAX)
MAGNITUDES = st.integers(1, codec.MAGNITUDE_MAX)


def refused(body: bytes, code: RejectCode, words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        parse_contribution(body, WEIGHTS, gradients=False)
    assert caught.value.code is code


@given(words_and_weights(), NUMBERS, MAGNITUDES)
def test_a_contribution_survives_the_wire(
    drawn: tuple[NDArray[np.uint32], int], number: int, magnitude: int
) -> None:
    words, weights = drawn
    words = words[: codec.indices_max(weights)]
    base, payload = encode_words(words, weights)
    header = ContributionHeader(number, magnitude, base, len(words))
    body = pack_contribution(header, payload)
    assert len(body) <= link_limits(weights)[FrameType.CONTRIBUTION]
    found, back = parse_contribution(body, weights, gradients=False)
    assert found == header
    assert np.array_equal(back, words)


def test_indices_are_counted_from_the_first() -> None:
    assert BASE == 700
    assert codec.encode(uint32([0, 1 << 1 | 1, 299 << 1]), WEIGHTS - 700) == PAYLOAD


def test_a_far_range_costs_no_more_than_the_first() -> None:
    """Counted from weight 0, its first gap would be a quotient of 2 kB."""
    near = uint32([each << 1 for each in range(40)])
    weights = codec.WEIGHTS_MAX
    far = near + np.uint32((weights - 40) << 1)
    base, payload = encode_words(far, weights)
    assert base == weights - 40
    assert len(payload) <= len(codec.encode(near, weights))
    assert np.array_equal(decode_words(payload, 40, base, weights), far)


def test_the_fields_of_a_contribution_stand_where_the_specification_says() -> None:
    checked = struct.pack("<QIIIfI", 3, 32, 700, 3, 0.0, 0)
    assert checked + struct.pack("<I", codec.crc32c(checked + PAYLOAD)) + PAYLOAD == BODY
    assert len(BODY) == CONTRIBUTION_HEADER_BYTES + len(PAYLOAD)


@pytest.mark.parametrize("length", [0, 1, CONTRIBUTION_HEADER_BYTES - 1])
def test_one_that_is_shorter_than_a_header_is_refused(length: int) -> None:
    refused(BODY[:length], RejectCode.CONTRIBUTION, f"a contribution of {length} bytes is shorter than its")


def test_one_that_ends_a_round_may_have_no_indices() -> None:
    body = pack_contribution(ContributionHeader(1, 1, 0, 0, round=9), b"")
    header, words = parse_contribution(body, WEIGHTS, gradients=False)
    assert header.round == 9
    assert len(body) == CONTRIBUTION_HEADER_BYTES
    assert not len(words)


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (ContributionHeader(1, 2, 0, 0, round=9), b""),
        (ContributionHeader(1, 1, 1, 0, round=9), b""),
        (ContributionHeader(1, 1, 0, 0, round=9), PAYLOAD),
    ],
)
def test_one_without_indices_has_no_other_number(header: ContributionHeader, payload: bytes) -> None:
    refused(pack_contribution(header, payload), RejectCode.CONTRIBUTION, "of no indices that cannot be")


@pytest.mark.parametrize("bit", range(0, 8 * len(BODY), 5))
def test_a_changed_bit_is_seen(bit: int) -> None:
    body = bytearray(BODY)
    body[bit // 8] ^= 1 << bit % 8
    refused(bytes(body), RejectCode.CHECKSUM, "the checksum of a contribution does not match its bytes")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"number": 0}, "number 0, magnitude 32, from weight 700 on"),
        ({"number": NUMBER_MAX + 1}, f"number {NUMBER_MAX + 1}, magnitude 32"),
        ({"magnitude": 0}, "number 3, magnitude 0,"),
        ({"magnitude": codec.MAGNITUDE_MAX + 1}, "magnitude 1048577,"),
        ({"base": WEIGHTS}, "from weight 1000 on"),
        ({"base": 2**32 - 1}, "from weight 4294967295 on"),
    ],
)
def test_a_header_that_cannot_be_is_refused(changes: dict[str, int], words: str) -> None:
    body = pack_contribution(replace(HEADER, **changes), PAYLOAD)
    refused(body, RejectCode.CONTRIBUTION, f"a contribution that cannot be: .*{words}")


@pytest.mark.parametrize("rate", [-0.5, 100.5, math.nan, math.inf, -math.inf])
def test_a_gradient_at_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(PeerError, match=r"a learning rate of .*, possible is 0 to 100"):
        parse_contribution(pack_contribution(replace(HEADER, rate=rate), PAYLOAD), WEIGHTS, gradients=True)


def test_gradients_are_for_a_run_with_a_rule_and_changes_for_any() -> None:
    body = pack_contribution(replace(HEADER, rate=0.25), PAYLOAD)
    refused(body, RejectCode.CONTRIBUTION, "a contribution at a learning rate of 0.25, possible is 0$")
    assert parse_contribution(body, WEIGHTS, gradients=True)[0].rate == 0.25
    assert parse_contribution(BODY, WEIGHTS, gradients=True)[0].rate == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0}, "a payload of 0 indices, allowed are 1 to 300 for 300 weights"),
        ({"count": 301}, "a payload of 301 indices, allowed are 1 to 300 for 300 weights"),
        ({"count": 2**32 - 1}, "a payload of 4294967295 indices"),
        ({"count": 2}, "the payload of 2 indices in"),
        ({"count": 4}, "the payload of 4 indices in"),
        ({"base": 701}, "the payload of 3 indices in"),  # the last one is weight 1000 then
    ],
)
def test_a_payload_that_does_not_fit_its_header_is_refused(changes: dict[str, int], words: str) -> None:
    refused(pack_contribution(replace(HEADER, **changes), PAYLOAD), RejectCode.PAYLOAD, words)


def test_a_range_of_one_weight_at_the_end_is_whole() -> None:
    words = uint32([(WEIGHTS - 1) << 1 | 1])
    base, payload = encode_words(words, WEIGHTS)
    body = pack_contribution(ContributionHeader(1, 1, base, 1), payload)
    assert parse_contribution(body, WEIGHTS, gradients=False)[1].tolist() == words.tolist()


@given(st.binary(max_size=80), st.integers(1, codec.WEIGHTS_MAX), st.booleans())
def test_any_bytes_are_a_contribution_or_refused(body: bytes, weights: int, sealed: bool) -> None:
    if sealed and len(body) > 28:  # its checksum at least is right
        body = body[:28] + struct.pack("<I", codec.crc32c(body)) + body[28:]
    try:
        header, words = parse_contribution(body, weights, gradients=False)
    except PeerError:
        return
    assert len(words) == header.count
    assert not len(words) or int(words[-1]) >> 1 < weights


@given(
    number=st.integers(0, 2**64 - 1),
    magnitude=st.integers(0, 2**32 - 1),
    base=st.integers(0, WEIGHTS),
    count=st.integers(0, 5),
    payload=st.one_of(st.just(PAYLOAD), st.binary(max_size=8)),
)
def test_no_numbers_in_a_header_get_past_it_wrong(
    number: int, magnitude: int, base: int, count: int, payload: bytes
) -> None:
    body = pack_contribution(ContributionHeader(number, magnitude, base, count), payload)
    try:
        header, words = parse_contribution(body, WEIGHTS, gradients=False)
    except PeerError:
        return
    assert 1 <= header.number <= NUMBER_MAX
    assert 1 <= header.magnitude <= codec.MAGNITUDE_MAX
    assert base <= int(words[0]) >> 1
    assert int(words[-1]) >> 1 < WEIGHTS
