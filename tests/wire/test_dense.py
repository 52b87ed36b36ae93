"""The dense form: small ones exhaustively, the last byte, and when it is chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from p2psgd.wire import codec
from tests.wire import reference
from tests.wire.arrays import random_words, uint32
from tests.wire.guarded import guarded_bytes
from tests.wire.judging import check_encoding, decoded_or_none, plain_bytes
from tests.wire.reference import DENSE
from tests.wire.small_updates import updates_of, valid_payloads


@pytest.mark.parametrize("weights", range(1, 8))
def test_all_updates_of_few_weights(weights: int) -> None:
    for words in updates_of(weights):
        check_encoding(uint32(words), weights)
        payload = reference.encode(words, weights, DENSE)
        assert decoded_or_none(payload, len(words), weights) == words
        assert decoded_or_none(payload, len(words) + 1, weights) is None
        assert decoded_or_none(payload, len(words) - 1, weights) is None


@pytest.mark.parametrize(("count", "weights"), [(1, 1), (1, 2), (2, 3), (3, 4), (1, 5), (5, 5), (1, 6)])
def test_all_payloads_of_up_to_two_bytes(count: int, weights: int) -> None:
    """Exactly those are read that some update has."""
    valid = valid_payloads(count, weights)
    for size in range(3):
        for content in itertools.product(range(256), repeat=size):
            payload = bytes(content)
            assert decoded_or_none(payload, count, weights) == valid.get(payload)


@pytest.mark.parametrize("weights", [6, 8, 10])
def test_all_dense_payloads_of_two_bytes_of_digits(weights: int) -> None:
    for content in itertools.product(range(256), repeat=2):
        payload = bytes([reference.DENSE_MARK, *content])
        digits = [byte // 3**j % 3 for byte in content for j in range(5)]
        words = [index << 1 | digit - 1 for index, digit in enumerate(digits) if digit]
        right = max(content) <= 242 and not any(digits[weights:]) and len(words) > 0
        assert decoded_or_none(payload, max(1, len(words)), weights) == (words if right else None)


@pytest.mark.parametrize("weights", [*range(1, 90), 511, 512, 1000, 4096, 20_003])
@pytest.mark.parametrize("density", [0.05, 0.6, 1.0])
def test_every_length_is_read_from_memory_that_ends_there(weights: int, density: float) -> None:
    chance = np.random.default_rng(weights)
    words = random_words(chance, weights=weights, density=density)
    if not len(words):
        words = uint32([2 * weights - 1])
    payload = reference.encode(words.tolist(), weights, DENSE)
    assert decoded_or_none(guarded_bytes(payload), len(words), weights) == words.tolist()
    assert codec.measure(guarded_bytes(payload), len(words), weights) == codec.PayloadBits(
        8, 0, 0, 0, 8 * (len(payload) - 1), 0, 0
    )
    assert decoded_or_none(payload[:-1], len(words), weights) is None
    assert decoded_or_none(payload + b"\0", len(words), weights) is None


@pytest.mark.parametrize("weights", [503, 2000])
def test_a_fault_is_found_wherever_it_stands(weights: int) -> None:
    words = random_words(np.random.default_rng(5), weights=weights, density=0.7).tolist()
    payload = bytearray(reference.encode(words, weights, DENSE))
    for place in range(1, len(payload)):
        right = payload[place]
        for wrong in (243, 255):
            payload[place] = wrong
            assert decoded_or_none(payload, len(words), weights) is None
        payload[place] = 0 if right else 1  # another number of indices
        assert decoded_or_none(payload, len(words), weights) is None
        payload[place] = right
    assert decoded_or_none(payload, len(words), weights) == words


def test_the_shorter_form_is_chosen_and_blocks_at_a_tie() -> None:
    forms = set()
    for weights in range(1, 60):
        words = [index << 1 | index * index // 3 % 2 for index in range(weights)]
        check_encoding(uint32(words), weights)
        dense = 1 + -(-weights // 5)
        is_dense = codec.encode(uint32(words), weights)[0] == reference.DENSE_MARK
        forms.add((is_dense, dense - plain_bytes(uint32(words)) == 0))
        if dense >= plain_bytes(uint32(words)):
            assert not is_dense
    assert (True, False) in forms
    assert (False, True) in forms


def test_it_pays_above_the_density_that_the_specification_names() -> None:
    chance = np.random.default_rng(585)
    weights = 100_000
    for density, pays in ((0.50, False), (0.57, False), (0.60, True), (0.70, True), (0.99, True)):
        words = random_words(chance, weights=weights, density=density)
        payload = codec.encode(words, weights)
        assert (payload[0] == reference.DENSE_MARK) == pays
        np.testing.assert_array_equal(codec.decode(payload, len(words), weights), words)


def test_the_largest_update_of_a_small_net_is_every_weight() -> None:
    """More words than a quarter of the weights, and as many as an update may ever have."""
    weights = 2**18
    words = random_words(np.random.default_rng(18), weights=weights, density=1.0)
    payload = codec.encode(words, weights)
    assert len(payload) == 1 + -(-weights // 5)
    np.testing.assert_array_equal(codec.decode(payload, len(words), weights), words)
