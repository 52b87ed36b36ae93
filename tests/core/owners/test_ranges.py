"""Ranges cover each weight once, and what is cut or packed by them adds up to what it was."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.core.owners.ranges import as_updates, cut, owner_count, range_of
from p2psgd.wire import codec
from tests.wire.arrays import uint32

MEMBERS = st.integers(1, 1024)
WEIGHTS = st.one_of(st.integers(1, 50), st.integers(1, codec.WEIGHTS_MAX))


@given(MEMBERS, WEIGHTS)
def test_ranges_follow_each_other_from_the_first_weight_to_the_last(members: int, weights: int) -> None:
    ranges = [range_of(place, members, weights) for place in range(members)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == weights
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    sizes = [end - begin for begin, end in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(MEMBERS, WEIGHTS)
def test_each_owner_owns_a_weight(members: int, weights: int) -> None:
    owners = owner_count(members, weights)
    assert 1 <= owners <= members
    assert all(begin < end for begin, end in (range_of(place, owners, weights) for place in range(owners)))


def test_ranges_are_those_of_the_specification() -> None:
    assert [range_of(place, 4, 30) for place in range(4)] == [(0, 7), (7, 15), (15, 22), (22, 30)]
    assert [range_of(place, 3, 2) for place in range(3)] == [(0, 0), (0, 1), (1, 2)]


@given(st.data())
def test_what_is_cut_is_in_the_range_of_each_and_nothing_is_lost(data: st.DataObject) -> None:
    weights, members = data.draw(WEIGHTS), data.draw(MEMBERS)
    indices = sorted(data.draw(st.sets(st.integers(0, weights - 1), max_size=30)))
    words = uint32([index << 1 | data.draw(st.integers(0, 1)) for index in indices])
    parts = cut(words, members, weights)
    assert len(parts) == members
    assert np.concatenate(parts).tolist() == words.tolist()
    for place, part in enumerate(parts):
        begin, end = range_of(place, members, weights)
        assert all(begin <= word >> 1 < end for word in part.tolist())


VALUES = st.dictionaries(
    st.integers(0, codec.WEIGHTS_MAX - 1),
    st.one_of(st.integers(-20, 20), st.integers(-(2**24), 2**24)).filter(bool),
    max_size=30,
)


def total(updates: list[tuple[int, NDArray[np.uint32]]]) -> dict[int, int]:
    """Return what updates add to each weight."""
    values: dict[int, int] = {}
    for magnitude, words in updates:
        for word in words.tolist():
            values[word >> 1] = values.get(word >> 1, 0) + (-magnitude if word & 1 else magnitude)
    return values


def packed(
    values: dict[int, int], *, kinds_max: int = 8, magnitude_max: int = codec.MAGNITUDE_MAX
) -> list[tuple[int, NDArray[np.uint32]]]:
    indices = np.array(sorted(values), np.int64)
    sizes = np.array([values[index] for index in sorted(values)], np.int32)
    return as_updates(indices, sizes, kinds_max=kinds_max, magnitude_max=magnitude_max)


@given(VALUES, st.integers(0, 8), st.sampled_from([1 << 18, 1 << 20, (1 << 20) - 1]))
def test_updates_add_exactly_the_values(values: dict[int, int], kinds_max: int, magnitude_max: int) -> None:
    updates = packed(values, kinds_max=kinds_max, magnitude_max=magnitude_max)
    assert total(updates) == values
    for magnitude, words in updates:
        assert 1 <= magnitude <= magnitude_max
        assert words.dtype == np.uint32
        assert np.all(np.diff(words >> 1) > 0)  # sorted, none twice: as a payload must be


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 2**20 + 1, -(2**20)])
def test_a_value_beyond_the_largest_magnitude_takes_several(value: int) -> None:
    updates = packed({5: value, 7: -1})
    assert total(updates) == {5: value, 7: -1}
    assert max(magnitude for magnitude, _ in updates) == 2**20


def test_few_magnitudes_take_an_update_each_and_many_one_for_each_bit() -> None:
    few = packed({index: 3 if index % 2 else -1000 for index in range(100)})
    assert [magnitude for magnitude, _ in few] == [3, 1000]
    many = packed({index: index + 1 for index in range(100)})
    assert [magnitude for magnitude, _ in many] == [1, 2, 4, 8, 16, 32, 64]


def test_no_values_are_no_updates() -> None:
    assert packed({}) == []
