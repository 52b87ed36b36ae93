"""Digests and checksums: the reference's values, linear, and the same in slices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.vectors import PayloadVector, payload_vectors
from tests.wire import reference
from tests.wire.arrays import random_words
from tests.wire.guarded import guarded, guarded_bytes

keys = st.integers(0, 2**64 - 1)
coordinate_lists = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50)


@pytest.mark.parametrize("vector", payload_vectors(), ids=lambda vector: vector.name)
def test_a_vector_gives_its_digest_and_its_checksum(vector: PayloadVector) -> None:
    words = np.array(vector.words, np.uint32)
    assert codec.digest_words(words, vector.step, vector.key) == vector.digest
    assert codec.crc32c(vector.payload) == vector.crc32c


@given(coordinate_lists, keys, st.integers(0, 2**31 - 50))
def test_the_digest_of_coordinates_is_the_references(coordinates: list[int], key: int, start: int) -> None:
    array = np.array(coordinates, np.int32)
    assert codec.digest_coordinates(array, key, start) == reference.digest_coordinates(
        coordinates, key, start
    )


@given(coordinate_lists, keys, st.integers(0, 50))
def test_digests_of_slices_add_up(coordinates: list[int], key: int, cut: int) -> None:
    array = np.array(coordinates, np.int32)
    cut = min(cut, len(array))
    halves = codec.digest_coordinates(array[:cut], key) + codec.digest_coordinates(array[cut:], key, cut)
    assert halves % 2**64 == codec.digest_coordinates(array, key)


@given(st.integers(0, 2**32 - 1), keys, st.integers(1, codec.MAGNITUDE_MAX))
def test_an_update_changes_the_digest_by_its_contribution(seed: int, key: int, step: int) -> None:
    chance = np.random.default_rng(seed)
    coordinates = chance.integers(-(2**23), 2**23, 500).astype(np.int32)
    words = random_words(chance, weights=500, density=0.2)
    before = codec.digest_coordinates(coordinates, key)
    codec.apply_coordinates(coordinates, words, step)
    assert (
        codec.digest_coordinates(coordinates, key) == (before + codec.digest_words(words, step, key)) % 2**64
    )
    assert codec.digest_words(words, step, key) == reference.digest_words(words.tolist(), step, key)


def test_arrays_of_every_small_length_and_alignment_have_the_references_digests() -> None:
    """Not a word is read beyond them."""
    chance = np.random.default_rng(6)
    for count in range(33):
        words: NDArray[np.uint32] = guarded(count, np.uint32)
        words[:] = chance.integers(0, 2**32, count)
        coordinates = words.view(np.int32)
        assert codec.digest_words(words, 3, 5) == reference.digest_words(words.tolist(), 3, 5)
        assert codec.digest_coordinates(coordinates, 5, 9) == reference.digest_coordinates(
            coordinates.tolist(), 5, 9
        )


def test_digests_refuse_what_has_no_place_in_a_replica() -> None:
    words, coordinates = np.zeros(1, np.uint32), np.zeros(4, np.int32)
    for step in (0, codec.MAGNITUDE_MAX + 1):
        with pytest.raises(ValueError, match="step"):
            codec.digest_words(words, step, 1)
    with pytest.raises(TypeError):
        codec.digest_words(words, 1, 2**64)
    with pytest.raises(ValueError, match="start"):
        codec.digest_coordinates(coordinates, 1, 2**31 - 3)
    with pytest.raises(TypeError, match="coordinates must be of int32"):
        codec.digest_coordinates(words, 1)  # type: ignore[arg-type]


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 9))
def test_the_checksum_is_the_references_in_one_go_or_in_two(data: bytes, cut: int, offset: int) -> None:
    moved = memoryview(bytes(offset) + data)[offset:]
    assert codec.crc32c(moved) == reference.crc32c(data)
    assert codec.crc32c(data[cut:], codec.crc32c(data[:cut])) == reference.crc32c(data)


def test_the_checksum_of_every_small_length_at_every_offset_is_the_references() -> None:
    data = np.random.default_rng(5).bytes(300)
    for length in range(301):
        expected = reference.crc32c(data[:length])
        for offset in range(16):
            moved = memoryview(bytes(offset) + data[:length])[offset:]
            assert codec.crc32c(moved) == expected
        assert codec.crc32c(guarded_bytes(data[:length])) == expected


@pytest.mark.parametrize("length", [3071, 3072, 3073, 3 * 3072 + 192 + 15])
def test_the_checksum_of_many_bytes_is_the_references(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    assert codec.crc32c(guarded_bytes(data)) == reference.crc32c(data)
    assert codec.crc32c(data[1000:], codec.crc32c(data[:1000])) == reference.crc32c(data)
