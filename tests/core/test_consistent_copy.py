from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.core.scrub import ConsistentCopy, words_below
from p2psgd.wire import codec
from tests.core.cluster import make_words

WEIGHTS = 50
UPDATES = st.tuples(st.sets(st.integers(0, WEIGHTS - 1), min_size=1), st.booleans(), st.integers(1, 9))


def live() -> NDArray[np.int32]:
    return np.arange(WEIGHTS, dtype=np.int32) * 100


@pytest.mark.parametrize("slice_length", [1, 7, 49, 50, 51])
def test_a_copy_of_what_stands_still_is_equal(slice_length: int) -> None:
    copy, slices = ConsistentCopy(live(), live() * 0), 1
    while not copy.advance(slice_length):
        slices += 1
    assert slices == -(-WEIGHTS // slice_length)
    assert copy.coordinates.tobytes() == live().tobytes()


@given(st.lists(st.integers(1, 20) | UPDATES))
def test_the_copy_is_the_live_array_at_the_moment_it_is_done(
    events: list[int | tuple[set[int], bool, int]],
) -> None:
    coordinates = live()
    copy = ConsistentCopy(coordinates, np.empty_like(coordinates))
    done = False
    for event in [*events, WEIGHTS]:
        if done:
            break
        if isinstance(event, int):
            done = copy.advance(event)
        else:
            words, magnitude = make_words(list(event[0]), event[1]), event[2]
            codec.apply_coordinates(coordinates, words, magnitude)
            copy.note(words, magnitude)
    assert done
    assert copy.coordinates.tobytes() == coordinates.tobytes()
    at_the_end = coordinates.tobytes()
    codec.apply_coordinates(coordinates, make_words([0, WEIGHTS - 1]), 1)
    assert copy.coordinates.tobytes() == at_the_end


@given(st.sets(st.integers(0, WEIGHTS - 1)), st.booleans(), st.integers(0, WEIGHTS))
def test_words_below_are_those_of_the_indices_below(indices: set[int], negative: bool, end: int) -> None:
    words = make_words(list(indices), negative)
    assert [word >> 1 for word in words_below(words, end).tolist()] == sorted(i for i in indices if i < end)


def test_words_below_the_largest_run_there_is_are_all() -> None:
    words = np.array([0, 2**32 - 2, 2**32 - 1], np.uint32)
    assert len(words_below(words, codec.WEIGHTS_MAX)) == 3
    assert len(words_below(words, codec.WEIGHTS_MAX - 1)) == 1
