from __future__ import annotations

import numpy as np
import pytest

from p2psgd.core.state import QuantizedWeights
from p2psgd.wire import codec
from tests.core.cluster import make_words

KEY = 77


def make_lattice(*coordinates: int) -> QuantizedWeights:
    return QuantizedWeights(np.array(coordinates, np.int32), key=KEY)


@pytest.mark.parametrize("coordinates", [(), (0,), (3, -9, 4), (9, -3), (-(2**31), 5)])
def test_the_largest_magnitude_is_that_of_either_sign(coordinates: tuple[int, ...]) -> None:
    assert make_lattice(*coordinates).magnitude_max == max(map(abs, coordinates), default=0)


def test_after_a_replacement_everything_is_that_of_the_new_coordinates() -> None:
    lattice = make_lattice(1, 2, -(codec.COORDINATE_WARN - 1))
    initial = lattice.initial_digest
    other = np.array([5, -7, 6], np.int32)
    lattice.replace(other, codec.digest_coordinates(other, KEY))
    assert lattice.coordinates is other
    assert lattice.digest == lattice.recompute_digest()
    assert lattice.initial_digest == initial
    assert lattice.magnitude_max == 7
    words = make_words([2])
    assert lattice.apply(words, 3, codec.digest_words(words, 3, KEY)) is None
    assert other.tolist() == [5, -7, 9]
    assert lattice.digest == lattice.recompute_digest()


def test_a_replacement_warns_anew_when_it_has_come_down_again() -> None:
    lattice = make_lattice(codec.COORDINATE_WARN + 5, 0)
    assert lattice.apply(make_words([0]), 3, 0) is None  # was beyond from the start
    lattice.replace(np.array([0, codec.COORDINATE_WARN], np.int32), 0)
    warning = lattice.apply(make_words([1]), 3, 0)
    assert warning is not None
    assert (warning.index, warning.fatal) == (1, False)


def test_a_replacement_of_another_length_is_our_own_fault() -> None:
    with pytest.raises(AssertionError):
        make_lattice(1, 2).replace(np.zeros(3, np.int32), 0)
