"""Many updates at once: the result of one after the other, whatever the ranges, and nothing outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.wire.arrays import random_words, uint32
from tests.wire.guarded import guarded

RANGE = 2**15  # weights that the core walks at a time, if there are words enough
QUANTUM = 2.0**-20

Update = tuple[NDArray[np.uint32], int]


def guarded_words(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    copy: NDArray[np.uint32] = guarded(len(words), np.uint32)
    copy[:] = words
    return copy


def updates_of(seed: int, *, weights: int, densities: Sequence[float]) -> list[Update]:
    chance = np.random.default_rng(seed)
    return [
        (
            guarded_words(random_words(chance, weights=weights, density=density)),
            int(chance.integers(1, 1000)),
        )
        for density in densities
    ]


def check_against_one_after_the_other(weights: int, updates: list[Update]) -> None:
    """Integers and floats, and the largest coordinate named."""
    together: NDArray[np.int32] = guarded(weights, np.int32)
    values: NDArray[np.float32] = guarded(weights, np.float32)
    together[:] = np.random.default_rng(weights).integers(-1000, 1000, weights)
    values[:] = together * QUANTUM
    alone = together.copy()
    values_alone = values.copy()
    largest = (0, 0)
    for words, step in updates:
        codec.apply_coordinates(alone, words, step)
        codec.apply_weights(values_alone, words, step * QUANTUM)
        for index in words >> 1:
            magnitude = abs(int(alone[index]))
            if magnitude > largest[0] or (magnitude == largest[0] and int(index) < largest[1]):
                largest = magnitude, int(index)
    assert codec.apply_coordinates_together(together, updates) == largest
    codec.apply_weights_together(values, [(words, step * QUANTUM) for words, step in updates])
    assert together.tobytes() == alone.tobytes()
    assert values.tobytes() == values_alone.tobytes()


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0]), max_size=9),
)
def test_the_result_is_that_of_one_after_the_other(seed: int, weights: int, densities: list[float]) -> None:
    check_against_one_after_the_other(weights, updates_of(seed, weights=weights, densities=densities))


@pytest.mark.parametrize("weights", [RANGE - 1, RANGE, RANGE + 1, 3 * RANGE, 3 * RANGE + 17])
@pytest.mark.parametrize(
    "densities",
    [
        [0.001] * 2,  # too few words for a range: larger ranges
        [0.002] * 9,  # few words: each asks for the line of one to come
        [0.002] * 20,  # as many words as pairs of lines: two lines of the next range with each
        [0.02] * 4 + [0.0],  # more words than lines: one line with each
        [1.0, 0.0001],
    ],
)
def test_ranges_leave_no_word_out(weights: int, densities: list[float]) -> None:
    check_against_one_after_the_other(weights, updates_of(7, weights=weights, densities=densities))


def test_the_first_and_the_last_weight_of_every_range_are_reached() -> None:
    edges = [0, RANGE - 1, RANGE, 2 * RANGE - 1, 2 * RANGE, 2 * RANGE + 4]
    weights = 2 * RANGE + 5
    plus = uint32([index << 1 for index in edges])
    everywhere_minus = uint32([index << 1 | 1 for index in range(weights)])
    check_against_one_after_the_other(weights, [(plus, 5), (everywhere_minus, 1), (plus[1:3], 7)])


def test_words_in_any_order_are_all_applied() -> None:
    chance = np.random.default_rng(3)
    updates = updates_of(3, weights=3 * RANGE, densities=[0.02] * 4)
    expected = np.zeros(3 * RANGE, np.int32)
    codec.apply_coordinates_together(expected, updates)
    shuffled = [(guarded_words(chance.permutation(words)), step) for words, step in updates]
    coordinates: NDArray[np.int32] = guarded(3 * RANGE, np.int32)
    codec.apply_coordinates_together(coordinates, shuffled)
    assert coordinates.tobytes() == expected.tobytes()


def test_the_largest_is_what_a_coordinate_had_after_any_update() -> None:
    coordinates = np.array([-9, 2**30, 4, 3], np.int32)
    forth, back = uint32([0 << 1 | 1, 2 << 1]), uint32([0 << 1, 2 << 1 | 1])
    assert codec.apply_coordinates_together(coordinates, [(forth, 5), (back, 5)]) == (14, 0)
    assert coordinates.tolist() == [-9, 2**30, 4, 3]
    tie = [(uint32([3 << 1]), 2), (uint32([2 << 1]), 1)]
    assert codec.apply_coordinates_together(coordinates, tie) == (5, 2)
    assert codec.apply_coordinates_together(coordinates, []) == (0, 0)
    assert codec.apply_coordinates_together(coordinates, [(uint32([]), 1)]) == (0, 0)
    assert codec.apply_coordinates_together(np.array([1, 1], np.int32), [(uint32([3]), 1)]) == (0, 0)


@pytest.mark.parametrize("place", [0, 17, 99])
def test_an_index_outside_is_refused_before_the_first_write(place: int) -> None:
    good = np.arange(0, 200, 2, dtype=np.uint32)
    bad = good.copy()
    bad[place] = 100 << 1 | 1
    coordinates: NDArray[np.int32] = guarded(100, np.int32)
    values: NDArray[np.float32] = guarded(100, np.float32)
    with pytest.raises(ValueError, match="update 2 has an index that is not below"):
        codec.apply_coordinates_together(coordinates, [(good, 1), (good, 1), (bad, 1)])
    with pytest.raises(ValueError, match="update 2 has an index that is not below"):
        codec.apply_weights_together(values, [(good, 1.0), (good, 1.0), (bad, 1.0)])
    with pytest.raises(ValueError, match="update 0"):
        codec.apply_coordinates_together(coordinates[:0], [(good[:1], 1)])
    assert not coordinates.any()
    assert not values.any()


def test_a_step_or_amount_out_of_range_is_refused_before_the_first_write() -> None:
    coordinates, values, words = np.zeros(4, np.int32), np.zeros(4, np.float32), uint32([2])
    for step in (0, codec.MAGNITUDE_MAX + 1, 2**32 - 1):
        with pytest.raises(ValueError, match="update 1 has a step that is not within"):
            codec.apply_coordinates_together(coordinates, [(words, 1), (words, step)])
    for amount in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="update 1 has an amount that is not positive and finite"):
            codec.apply_weights_together(values, [(words, 1.0), (words, amount)])
    with pytest.raises(ValueError, match="the amount is not exact in float32"):
        codec.apply_weights_together(values, [(words, 1.0), (words, 0.1)])
    assert not coordinates.any()
    assert not values.any()


def test_a_call_takes_so_many_updates_and_no_more() -> None:
    coordinates = np.zeros(4, np.int32)
    updates = [(uint32([2]), 1)] * codec.TOGETHER_MAX
    assert codec.apply_coordinates_together(coordinates, updates) == (codec.TOGETHER_MAX, 1)
    with pytest.raises(ValueError, match="more than 4096 updates in one call"):
        codec.apply_coordinates_together(coordinates, [*updates, updates[0]])
    assert coordinates.tolist() == [0, codec.TOGETHER_MAX, 0, 0]


def test_other_types_and_shapes_are_refused() -> None:
    values, words = np.zeros(4, np.float32), uint32([2])
    with pytest.raises(TypeError, match="a tuple of its words and a number"):
        codec.apply_weights_together(values, [words])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a tuple of its words and a number"):
        codec.apply_weights_together(values, [(words, 1.0, 1.0)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="words must be of uint32"):
        codec.apply_weights_together(values, [(words.astype(np.int64), 1.0)])
    with pytest.raises(ValueError, match="words must be contiguous"):
        codec.apply_weights_together(values, [(uint32([2, 4, 6])[::2], 1.0)])
    with pytest.raises(ValueError, match="words must be aligned"):
        codec.apply_weights_together(values, [(np.zeros(9, np.uint8)[1:].view(np.uint32), 1.0)])
    with pytest.raises(TypeError, match="an amount does not fit"):
        codec.apply_weights_together(values, [(words, "1")])  # type: ignore[list-item]
    for step in (-1, 2**32, 1.0):
        with pytest.raises(TypeError, match="a step does not fit"):
            codec.apply_coordinates_together(values.view(np.int32), [(words, step)])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        codec.apply_weights_together(values, 3)  # type: ignore[arg-type]
    assert not values.any()
