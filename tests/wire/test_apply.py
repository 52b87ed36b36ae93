"""Applying updates: exact, in any order, and never outside the array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.wire.arrays import random_words, uint32
from tests.wire.guarded import guarded


def random_updates(seed: int, *, weights: int, updates: int) -> list[tuple[NDArray[np.uint32], int]]:
    """(words, step) pairs."""
    chance = np.random.default_rng(seed)
    made = []
    for _ in range(updates):
        made.append((random_words(chance, weights=weights, density=0.1), int(chance.integers(1, 1000))))
    return made


@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_any_order_gives_the_same_bits_in_integers_and_in_floats(seed: int, order: object) -> None:
    weights, quantum = 300, 2.0**-20
    updates = random_updates(seed, weights=weights, updates=12)
    coordinates: NDArray[np.int32] = guarded(weights, np.int32)
    values: NDArray[np.float32] = guarded(weights, np.float32)
    coordinates[:] = np.random.default_rng(seed).integers(-(2**20), 2**20, weights)
    values[:] = coordinates * quantum
    expected = coordinates.astype(np.int64)
    for words, step in updates:
        expected[words >> 1] += np.where(words & 1, -step, step)
        codec.apply_coordinates(coordinates, words, step)
    order.shuffle(updates)  # type: ignore[attr-defined]
    for words, step in updates:
        codec.apply_weights(values, words, step * quantum)
    np.testing.assert_array_equal(coordinates, expected)
    np.testing.assert_array_equal(values, expected.astype(np.float64) * quantum)


@given(st.integers(0, 2**32 - 1))
def test_the_largest_touched_coordinate_is_named(seed: int) -> None:
    coordinates = np.random.default_rng(seed).integers(-50, 50, 200).astype(np.int32)
    for words, step in random_updates(seed, weights=200, updates=3):
        largest, index = codec.apply_coordinates(coordinates, words, step)
        touched = np.abs(coordinates[words >> 1])
        assert largest == (touched.max() if len(words) else 0)
        if len(words):
            assert index == int(words[touched.argmax()]) >> 1


def test_untouched_coordinates_do_not_count() -> None:
    coordinates = np.array([-9, 2**30, 4], np.int32)
    assert codec.apply_coordinates(coordinates, uint32([0 << 1 | 1, 2 << 1]), 3) == (12, 0)
    assert coordinates.tolist() == [-12, 2**30, 7]
    assert codec.apply_coordinates(coordinates, uint32([]), 3) == (0, 0)


def test_a_coordinate_wraps_instead_of_trapping() -> None:
    coordinates = np.array([2**31 - 1, -(2**31)], np.int32)
    assert codec.apply_coordinates(coordinates, uint32([0]), 1) == (2**31, 0)
    assert codec.apply_coordinates(coordinates, uint32([3]), 1) == (2**31 - 1, 1)
    assert coordinates.tolist() == [-(2**31), 2**31 - 1]


@pytest.mark.parametrize("place", [0, 17, 99])
def test_an_index_outside_is_refused_before_the_first_write(place: int) -> None:
    """At the end, where sorted words would have it, and anywhere else."""
    words = np.arange(0, 200, 2, dtype=np.uint32)
    words[place] = 100 << 1 | 1
    coordinates: NDArray[np.int32] = guarded(100, np.int32)
    values: NDArray[np.float32] = guarded(100, np.float32)
    with pytest.raises(ValueError, match=f"the word at position {place} has an index that is not below"):
        codec.apply_coordinates(coordinates, words, 1)
    with pytest.raises(ValueError, match=f"the word at position {place} has an index that is not below"):
        codec.apply_weights(values, words, 1.0)
    assert not coordinates.any()
    assert not values.any()
    with pytest.raises(ValueError, match="position 0"):
        codec.apply_coordinates(coordinates[:0], words[:1], 1)


def test_steps_and_amounts_out_of_range_are_refused() -> None:
    coordinates, values, words = np.zeros(4, np.int32), np.zeros(4, np.float32), uint32([2])
    for step in (0, codec.MAGNITUDE_MAX + 1, 2**32 - 1):
        with pytest.raises(ValueError, match=f"step {step} is not within"):
            codec.apply_coordinates(coordinates, words, step)
    for step in (-1, 2**32):
        with pytest.raises(TypeError):
            codec.apply_coordinates(coordinates, words, step)
    for amount in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="positive and finite"):
            codec.apply_weights(values, words, amount)
    with pytest.raises(ValueError, match="the amount is not exact in float32"):
        codec.apply_weights(values, words, 0.1)
    codec.apply_coordinates(coordinates, words, codec.MAGNITUDE_MAX)
    assert coordinates.tolist() == [0, codec.MAGNITUDE_MAX, 0, 0]


def test_other_types_and_shapes_are_refused() -> None:
    words = uint32([2])
    with pytest.raises(TypeError, match="coordinates must be of int32"):
        codec.apply_coordinates(np.zeros(4, np.int64), words, 1)
    with pytest.raises(TypeError, match="coordinates must be of int32"):
        codec.apply_coordinates(np.zeros(4, np.float32), words, 1)
    with pytest.raises(TypeError, match="coordinates must be of int32"):
        codec.apply_coordinates(np.zeros(4, ">i4"), words, 1)
    with pytest.raises(ValueError, match="one-dimensional"):
        codec.apply_coordinates(np.zeros((2, 2), np.int32), words, 1)
    with pytest.raises(ValueError, match="weights must be contiguous"):
        codec.apply_weights(np.zeros(8, np.float32)[::2], words, 1.0)
    with pytest.raises(ValueError, match="weights must be aligned"):
        codec.apply_weights(np.zeros(17, np.uint8)[1:].view(np.float32), words, 1.0)
    with pytest.raises(ValueError, match="weights must be writable"):
        codec.apply_weights(np.frombuffer(bytes(16), np.float32), words, 1.0)
    with pytest.raises(TypeError, match="weights must be a buffer of float32"):
        codec.apply_weights([0.0], words, 1.0)  # type: ignore[arg-type]
