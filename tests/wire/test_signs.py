"""Blocks with coded signs: small ones exhaustively, and runs of every length at every bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from p2psgd.wire import codec
from tests.wire import reference
from tests.wire.arrays import uint32
from tests.wire.guarded import guarded_bytes
from tests.wire.judging import check_encoding, decoded_or_none
from tests.wire.reference import BlockChoice
from tests.wire.small_updates import updates_of, valid_payloads

MODES = range(1, 8)


def alternating_runs(lengths: list[int]) -> list[int]:
    """Words 0, 1, 2, ... in runs of one sign, the first of them plus."""
    signs = [number % 2 for number, length in enumerate(lengths) for _ in range(length)]
    return [index << 1 | sign for index, sign in enumerate(signs)]


@pytest.mark.parametrize("weights", range(1, 7))
def test_all_updates_of_few_weights_in_every_mode(weights: int) -> None:
    for words in updates_of(weights):
        for choice in itertools.starmap(BlockChoice, itertools.product((0, 1, 2, 24), range(8))):
            payload = reference.encode(words, weights, (choice,))
            assert decoded_or_none(payload, len(words), weights) == words


@pytest.mark.parametrize("header", [m << 5 for m in range(8)])
def test_all_payloads_of_three_bytes(header: int) -> None:
    """Of all bytes after a header with k = 0, exactly those are read that some update has."""
    count, weights = 4, 5
    valid = valid_payloads(count, weights)
    for rest in itertools.product(range(256), repeat=2):
        payload = bytes([header, *rest])
        assert decoded_or_none(payload, count, weights) == valid.get(payload)


def test_the_smallest_of_the_best_modes_is_chosen_if_it_pays() -> None:
    """All pairs and triples of short runs, where ties abound, some with far words among them."""
    for lengths in itertools.product(range(1, 12), repeat=3):
        words = alternating_runs(list(lengths))
        check_encoding(uint32(words), 2**20)
        spread = [word + (40 << 1) * (word // 10) for word in words]
        check_encoding(uint32(spread), 2**20)


@pytest.mark.parametrize("m", MODES)
def test_runs_of_every_length_stand_at_every_bit(m: int) -> None:
    """Up to the longest that a block has; before it as many runs of other lengths as move it by a bit."""
    for length in [*range(1, 20), 63, 64, 65, 127, 128, 129, 255, 256, 400, 490]:
        for before in range(8):
            words = alternating_runs([*([1] * before), length, 3])
            choices = (BlockChoice(before % 3, m),)
            payload = reference.encode(words, 512, choices)
            assert decoded_or_none(guarded_bytes(payload), len(words), 512) == words
            assert decoded_or_none(payload[:-1], len(words), 512) is None


@pytest.mark.parametrize(
    "far", [[], [0], [511], [7, 8, 9], [*range(0, 512, 64)], [*range(512)], [*range(1, 511)]]
)
@pytest.mark.parametrize("mean", [1, 2, 30, 10_000])
def test_far_words_may_stand_anywhere(far: list[int], mean: int) -> None:
    chance = np.random.default_rng(mean)
    gaps = np.zeros(512, np.int64)
    gaps[far] = 9
    negative = np.cumsum(chance.random(512) < 1 / mean) % 2
    words = ((np.cumsum(gaps + 1) - 1) << 1 | negative).astype(np.uint32)
    check_encoding(words, 2**20)
    for m in MODES:
        payload = reference.encode(words.tolist(), 2**20, (BlockChoice(3, m),))
        assert decoded_or_none(guarded_bytes(payload), 512, 2**20) == words.tolist()
        measured = codec.measure(payload, 512, 2**20)
        assert measured == codec.PayloadBits(*reference.measure(payload, 512, 2**20))
        assert measured.sign_coded_blocks == 1


def test_signs_begin_anew_in_every_block() -> None:
    for count in (511, 512, 513, 520, 1024, 1025):
        words = [index << 1 | 1 for index in range(count)]
        check_encoding(uint32(words), 2**20)
        blocks = -(-count // 512)
        for choices in itertools.product((BlockChoice(0, 0), BlockChoice(0, 7)), repeat=blocks):
            payload = reference.encode(words, 2**20, choices)
            assert decoded_or_none(payload, count, 2**20) == words


def test_a_run_of_zero_bits_as_long_as_a_payload_is_refused() -> None:
    """Also where the run, times 2**m, would pass 2**16 and 2**32 and come back."""
    start = bytes([7 << 5, 0xFF, 0x01])  # nine near words
    for zeros in (512, 2**9 + 1, 2**16 // 8, 2**20):
        for end in (b"", b"\x01\x00", b"\x80\xff\xff"):
            assert decoded_or_none(guarded_bytes(start + bytes(zeros) + end), 9, 100) is None
