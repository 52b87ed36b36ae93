"""The point of a trainer: in several arrays it is what it would be in one, and goes where the weights go."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.client.compute import Segment, pass_over
from p2psgd.client.point import Point
from p2psgd.wire import codec

SIZES = (5, 1, 300, 44)
WEIGHTS = sum(SIZES)
BEYOND = 6  # coordinates that are no weights


class Setting:
    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.weights = self.numbers()
        self.arrays = [self.numbers()[:size].copy() for size in SIZES]
        self.point = Point(self.arrays)

    def numbers(self) -> NDArray[np.float32]:
        return self.chance.integers(-1000, 1000, WEIGHTS).astype(np.float32) / np.float32(1024)

    @property
    def flat(self) -> NDArray[np.float32]:
        return np.concatenate(self.arrays)

    def words(self, count: int) -> NDArray[np.uint32]:
        indices = np.sort(self.chance.choice(WEIGHTS + BEYOND, count, replace=False))
        return (indices << 1 | self.chance.integers(0, 2, count)).astype(np.uint32)


@pytest.fixture(params=range(5))
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(request.param)


def test_its_pieces_are_those_of_one_array(setting: Setting) -> None:
    flat = setting.flat
    for most in (None, 7):
        for begin, end in ((0, WEIGHTS), (3, 8), (5, 6), (6, 306), (100, 100), (340, WEIGHTS)):
            pieces = list(setting.point.pieces(begin, end, most=most))
            assert [start for start, _ in pieces] == sorted({start for start, _ in pieces})
            found = np.concatenate([np.empty(0, np.float32), *(piece for _, piece in pieces)])
            np.testing.assert_array_equal(found, flat[begin:end])
            assert most is None or max((piece.size for _, piece in pieces), default=0) <= most


def test_a_pass_sends_what_it_is_away_from_the_weights(setting: Setting) -> None:
    """Word by word as a pass over one array that has the difference."""
    residual = setting.flat - setting.weights
    start = 150
    chains = [Segment(((start, WEIGHTS), (0, start)), 0.5, 20), Segment(((3, 320),), 0.25, 400)]
    found = []
    for chain in chains:
        targets = [np.full(WEIGHTS, np.nan, np.float32) for _ in range(2)]
        words = np.empty((2, 400), np.uint32)
        zeros = np.zeros(WEIGHTS, np.float32)
        found = [
            *pass_over(residual, zeros, targets[0], [chain], words=words[0]),
            *pass_over(setting.point, setting.weights, targets[1], [chain], words=words[1], negated=True),
        ]
        np.testing.assert_array_equal(found[0].words, found[1].words)
        assert (found[0].counts, found[0].missed) == (found[1].counts, found[1].missed)
        np.testing.assert_array_equal(targets[0], targets[1])


def test_updates_move_it_as_they_move_the_weights(setting: Setting) -> None:
    amounts = [(setting.words(count), amount) for count, amount in ((40, 0.5), (1, 2.0), (200, 0.25))]
    expected = np.concatenate([setting.flat, np.zeros(BEYOND, np.float32)])
    codec.apply_weights_together(expected, amounts)
    setting.point.apply(amounts)
    np.testing.assert_array_equal(setting.flat, expected[:WEIGHTS])


def test_weights_that_are_fetched_anew_take_it_along(setting: Setting) -> None:
    away = setting.flat - setting.weights

    def fetch() -> None:
        setting.weights[:] = setting.numbers()

    setting.point.replace(setting.weights, fetch)
    np.testing.assert_array_equal(setting.flat, setting.weights + away)


def test_it_stays_with_the_weights_when_these_cannot_be_fetched(setting: Setting) -> None:
    before = setting.flat

    def fetch() -> None:
        raise ValueError("the daemon is gone")

    with pytest.raises(ValueError, match="gone"):
        setting.point.replace(setting.weights, fetch)
    np.testing.assert_array_equal(setting.flat, before)


@pytest.mark.parametrize("turn", [0, 1, 170])
def test_what_waits_at_some_places_is_found_in_any_order(setting: Setting, turn: int) -> None:
    places = np.roll(np.arange(0, WEIGHTS, 3), turn)
    found = setting.point.waiting(setting.weights)(places)
    np.testing.assert_array_equal(found, (setting.flat - setting.weights)[places])


def test_it_can_be_set_and_go_on_in_other_memory(setting: Setting) -> None:
    residual = setting.numbers()
    setting.point.set_to(setting.weights, residual)
    np.testing.assert_array_equal(setting.flat, setting.weights + residual)
    setting.arrays[2] = setting.arrays[2].copy()
    setting.point.move_to(setting.arrays)
    setting.point.set_to(setting.weights, None)
    np.testing.assert_array_equal(setting.flat, setting.weights)


def test_a_number_that_is_not_finite_is_found_in_its_range(setting: Setting) -> None:
    setting.arrays[2][7] = np.nan
    place = 6 + 7
    assert not setting.point.is_finite(0, WEIGHTS)
    assert not setting.point.is_finite(place, place + 1)
    assert setting.point.is_finite(0, place)
    assert setting.point.is_finite(place + 1, WEIGHTS)
