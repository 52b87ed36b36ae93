"""Payloads: the core against the reference, the golden vectors, and bytes that nobody should have sent.

test_signs.py and test_dense.py have what concerns only coded signs and only the dense form.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.reject import PeerError
from tests.vectors import PayloadVector, RefusedVector, payload_vectors, refused_vectors
from tests.wire import reference
from tests.wire.arrays import uint32
from tests.wire.guarded import guarded, guarded_bytes
from tests.wire.judging import check_encoding, check_judgement, decoded_or_none
from tests.wire.reference import BlockChoice
from tests.wire.strategies import (
    P_MAX,
    damaged_payloads,
    foreign_payloads,
    hostile_payloads,
    words_and_weights,
)

VECTORS = payload_vectors()
every_vector = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)


def choices_of(vector: PayloadVector, payload: bytes) -> reference.Choices:
    return reference.decode(payload, len(vector.words), vector.weights).choices


@every_vector
def test_a_vector_gives_its_payload_and_its_words(vector: PayloadVector) -> None:
    words = guarded(len(vector.words), np.uint32)
    words[:] = vector.words
    assert (codec.encode(words, vector.weights) == vector.payload) == vector.encoders_give
    decoded = codec.decode(guarded_bytes(vector.payload), len(vector.words), vector.weights)
    assert decoded.dtype == np.uint32
    assert tuple(decoded.tolist()) == vector.words


@every_vector
def test_the_words_of_a_vector_need_all_its_weights_and_no_more_than_its_last_index(
    vector: PayloadVector,
) -> None:
    last = vector.words[-1] >> 1
    if vector.payload[0] != reference.DENSE_MARK:  # whose length is that of all weights
        assert decoded_or_none(vector.payload, len(vector.words), last + 1) == list(vector.words)
    if last:
        assert decoded_or_none(vector.payload, len(vector.words), last) is None


@every_vector
def test_every_truncation_of_a_vector_is_refused(vector: PayloadVector) -> None:
    whole = guarded_bytes(vector.payload)
    for size in range(len(whole)):
        truncated = guarded_bytes(vector.payload[:size]) if size % 61 < 2 else whole[:size]
        assert decoded_or_none(truncated, len(vector.words), vector.weights) is None


@every_vector
def test_every_trailing_byte_is_refused(vector: PayloadVector) -> None:
    for byte in range(256):
        with pytest.raises(PeerError, match=r"^1 of the payload's [0-9]+ bytes follow its [0-9]+ indices"):
            codec.decode(vector.payload + bytes([byte]), len(vector.words), vector.weights)


@every_vector
def test_every_other_count_is_refused(vector: PayloadVector) -> None:
    for count in {len(vector.words) - 1, len(vector.words) + 1, 0, 2**18 + 1}:
        assert decoded_or_none(vector.payload, count, vector.weights) is None


@every_vector
def test_every_flipped_bit_is_refused_or_gives_other_valid_words(vector: PayloadVector) -> None:
    payload = bytearray(vector.payload)
    step = 1 if len(payload) < 1200 else 7  # all bits of the short ones, every seventh of the long ones
    for place in range(0, 8 * len(payload), step):
        payload[place // 8] ^= 1 << place % 8
        flipped = bytes(payload)
        words = decoded_or_none(flipped, len(vector.words), vector.weights)
        payload[place // 8] ^= 1 << place % 8
        if words is None:
            continue
        if tuple(words) == vector.words:  # the same in another way
            assert choices_of(vector, flipped) != choices_of(vector, vector.payload)
        indices = np.array(words, np.int64) >> 1
        assert (np.diff(indices) > 0).all()
        assert indices[-1] < vector.weights


@pytest.mark.parametrize("vector", refused_vectors(), ids=lambda vector: vector.name)
def test_a_refused_vector_is_refused(vector: RefusedVector) -> None:
    assert decoded_or_none(guarded_bytes(vector.payload), vector.count, vector.weights) is None


@every_vector
def test_a_vector_is_measured_as_by_the_reference(vector: PayloadVector) -> None:
    bits = codec.measure(guarded_bytes(vector.payload), len(vector.words), vector.weights)
    assert bits == codec.PayloadBits(*reference.measure(vector.payload, len(vector.words), vector.weights))
    assert bits.header + bits.remainder + bits.quotient + bits.sign + bits.dense == 8 * len(vector.payload)


@pytest.mark.parametrize("vector", refused_vectors(), ids=lambda vector: vector.name)
def test_measuring_refuses_with_the_words_of_decoding(vector: RefusedVector) -> None:
    with pytest.raises(PeerError) as of_decoding:
        codec.decode(vector.payload, vector.count, vector.weights)
    with pytest.raises(PeerError) as of_measuring:
        codec.measure(guarded_bytes(vector.payload), vector.count, vector.weights)
    assert str(of_measuring.value) == str(of_decoding.value)


@given(words_and_weights())
def test_the_core_writes_what_the_reference_writes_and_reads_it_back(
    case: tuple[NDArray[np.uint32], int],
) -> None:
    check_encoding(*case)


def words_of_gaps(gaps: list[int], *, alternating: bool = False) -> list[int]:
    return [int(at) << 1 | (alternating and i % 2) for i, at in enumerate(np.cumsum(np.array(gaps) + 1) - 1)]


def test_the_smallest_of_the_best_parameters_is_chosen() -> None:
    """All small pairs of gaps, where ties abound, with and without a far third, and all single ones."""
    pairs = itertools.product(range(40), range(40), ([], [0], [100], [0, 0, 3000]))
    for gaps in [*([first, second, *rest] for first, second, rest in pairs), *([gap] for gap in range(800))]:
        words = words_of_gaps(gaps)
        assert codec.encode(uint32(words), 2**20) == reference.encode(words, 2**20)


def test_quotients_of_every_length_stand_at_every_bit() -> None:
    """Among many gaps of 0, which keep the parameter at 0, four or one that are longer than a store."""
    for place, length in itertools.product(range(16), [*range(8, 20), 46, 47, 48, 49, 95, 96, 97, 200]):
        for few in ([length] * 4, [0, length, 0, 0], [length]):
            words = words_of_gaps([0] * place + few + [0] * 440, alternating=place % 2 == 0)
            payload = codec.encode(uint32(words), 2**20)
            assert payload == reference.encode(words, 2**20)
            assert codec.decode(payload, len(words), 2**20).tolist() == words


@given(foreign_payloads())
def test_any_choices_are_read(case: tuple[bytes, list[int], int, reference.Choices]) -> None:
    payload, words, weights, _ = case
    assert decoded_or_none(guarded_bytes(payload), len(words), weights) == words


@given(damaged_payloads())
@settings(max_examples=300)
def test_damaged_payloads_are_judged_as_by_the_reference(case: tuple[bytes, int, int]) -> None:
    check_judgement(*case)


@given(hostile_payloads())
@settings(max_examples=300)
def test_hostile_bytes_are_judged_as_by_the_reference(case: tuple[bytes, int, int]) -> None:
    check_judgement(*case)


@given(st.data())
@settings(max_examples=200)
def test_sums_around_the_last_index_are_judged_as_by_the_reference(data: st.DataObject) -> None:
    """Gaps that lead to just below and just beyond the weights, 2^31 and more: no sum may wrap."""
    parameter = data.draw(st.integers(18, 24))
    count = data.draw(st.integers(1, 520))
    longest = 2**parameter - 1
    gaps = data.draw(st.lists(st.sampled_from([0, 1, longest]), min_size=count, max_size=count))
    leap = data.draw(st.integers(0, count - 1))
    rest = sum(gaps) - gaps[leap] + count - 1
    aim = data.draw(st.sampled_from([2**30, 1_500_000_000, P_MAX, P_MAX + 2**29, 2**32]))
    gaps[leap] = max(0, aim + data.draw(st.integers(-2, 2)) - rest)
    signs = data.draw(st.sampled_from([0, 1]))
    choice = reference.BlockChoice(parameter, data.draw(st.integers(0, 7)))
    size = reference.BLOCK_GAPS
    payload = b"".join(
        reference.encode_block(gaps[begin : begin + size], [signs] * len(gaps[begin : begin + size]), choice)
        for begin in range(0, count, size)
    )
    check_judgement(payload, count, min(aim, P_MAX))


@given(st.binary(max_size=200), st.integers(-1, 2**32), st.integers(1, P_MAX))
def test_any_bytes_are_safe(payload: bytes, count: int, weights: int) -> None:
    words = decoded_or_none(guarded_bytes(payload), count, weights)
    assert words is None or reference.decode(payload, count, weights).words == words


@pytest.mark.parametrize("parameter", [0, 3, 20, 21, 22, 24])
def test_indices_up_to_the_last_of_2_to_the_31_are_exact(parameter: int) -> None:
    """A first block of one far leap; a second whose remainders, each the largest, lead to the very end."""
    size = min(512, 2**30 >> parameter)
    gaps = [2**parameter - 1] * size
    first = P_MAX - size * 2**parameter - 512
    indices = np.cumsum(np.array([first, *([0] * 511), *gaps], np.int64) + 1) - 1
    assert indices[-1] == P_MAX - 1
    words = (indices << 1).tolist()
    payload = reference.encode(words, P_MAX, (BlockChoice(24, 0), BlockChoice(parameter, 0)))
    assert decoded_or_none(payload, 512 + size, P_MAX) == words
    assert decoded_or_none(payload, 512 + size, P_MAX - 1) is None


def test_the_unary_stream_may_be_longer_than_the_quick_path_takes() -> None:
    for gap in (65_022, 65_023, 65_024, 65_535, 65_536, 70_000):
        words = [*(index << 1 for index in range(511)), 511 + gap << 1 | 1]
        payload = reference.encode(words, 100_000, (BlockChoice(0, 0),))
        assert decoded_or_none(guarded_bytes(payload), 512, 100_000) == words
        assert decoded_or_none(payload[:-1], 512, 100_000) is None
        assert decoded_or_none(payload, 512, 511 + gap) is None


@pytest.mark.parametrize("name", ["513 indices", "513 indices with signs in runs", "dense: 600 of 800"])
def test_a_payload_may_lie_anywhere_in_memory(name: str) -> None:
    vector = next(vector for vector in VECTORS if vector.name == name)
    measured = codec.measure(vector.payload, len(vector.words), vector.weights)
    for offset in range(9):
        moved = memoryview(bytes(offset) + vector.payload)[offset:]
        assert tuple(codec.decode(moved, len(vector.words), vector.weights).tolist()) == vector.words
        assert codec.measure(moved, len(vector.words), vector.weights) == measured


@pytest.mark.parametrize(
    ("words", "weights", "sentence"),
    [
        ([], 100, "number of indices"),
        ([4, 4], 100, "not in ascending order"),
        ([4, 5], 100, "not in ascending order"),
        ([6, 4], 100, "not in ascending order"),
        ([2**32 - 1, 4], 2**31, "not in ascending order"),
        ([200], 100, "not below the number of weights"),
        ([0], 0, "number of weights"),
        ([0], 2**31 + 1, "number of weights"),
        ([0, 2, 4], 2, "number of indices"),
        ([*range(0, 4002, 2)], 2000, "number of indices"),
        ([*range(0, 1026, 2), 1022], 2000, "block 1"),
    ],
)
def test_encode_refuses_words_that_are_no_update(words: list[int], weights: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        codec.encode(uint32(words), weights)


def test_encode_refuses_other_types_and_shapes() -> None:
    with pytest.raises(TypeError, match="words must be of uint32"):
        codec.encode(np.zeros(3, np.int64), 100)
    with pytest.raises(TypeError, match="words must be a buffer of uint32"):
        codec.encode([1, 2], 100)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one-dimensional"):
        codec.encode(np.zeros((2, 2), np.uint32), 100)
    with pytest.raises(ValueError, match="contiguous"):
        codec.encode(np.arange(10, dtype=np.uint32)[::2], 100)
    with pytest.raises(ValueError, match="aligned"):
        codec.encode(np.zeros(9, np.uint8)[1:].view(np.uint32), 100)
    with pytest.raises(TypeError):
        codec.measure("text", 1, 100)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        codec.decode("text", 1, 100)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="payload must be of bytes"):
        codec.decode(memoryview(bytes(24)).cast("d"), 1, 100)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "count", "weights", "sentence"),
    [
        ("000000ff", 9, 100, r"the payload of 9 indices in 4 bytes ends before its last index \(block 0\)"),
        ("40ff01", 9, 100, r"3 bytes ends before its last index \(block 0\)"),
        ("40ff010c00", 9, 100, "1 of the payload's 5 bytes follow its 9 indices"),
        ("f9", 9, 100, r"a block with a Rice parameter above 24 \(block 0\)"),
        ("40ff0114", 9, 100, r"a run of signs that is longer than its block \(block 0\)"),
        ("40ff018c", 9, 100, r"padding bits that are not zero \(block 0\)"),
        ("40ff010c", 9, 8, "9 indices, allowed are 1 to 8 for 8 weights"),
        ("01000021", 2, 9, r"an index that is not below the 9 weights \(block 0\)"),
        ("1f79", 12, 12, r"ends before its last index \(dense\)"),
        ("1f79790400", 12, 12, "1 of the payload's 5 bytes follow its 12 indices"),
        ("1f79f304", 12, 12, r"a byte above 242, which is not five digits \(dense\)"),
        ("1f79790d", 12, 12, r"padding bits that are not zero \(dense\)"),
        ("1f797903", 12, 12, r"another number of indices \(dense\)"),
    ],
)
def test_the_refusal_says_what_was_wrong_with_the_numbers(
    payload: str, count: int, weights: int, sentence: str
) -> None:
    with pytest.raises(PeerError, match=sentence):
        codec.decode(bytes.fromhex(payload), count, weights)


def test_the_cap_follows_the_weights() -> None:
    for weights, cap in ((1, 1), (1025, 1025), (2**18, 2**18), (2**18 + 1, 2**18), (2**31, 2**18)):
        assert codec.indices_max(weights) == reference.indices_max(weights) == cap
    for weights in (0, 2**31 + 1):
        with pytest.raises(ValueError, match="number of weights"):
            codec.indices_max(weights)
