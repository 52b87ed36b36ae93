from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.core.scrub import Scrub
from p2psgd.core.state import QuantizedWeights
from p2psgd.wire import codec
from tests.core.cluster import make_words

WEIGHTS, KEY = 50, 0x1234_5678_9ABC_DEF0
UPDATES = st.tuples(st.sets(st.integers(0, WEIGHTS - 1), min_size=1), st.booleans(), st.integers(1, 9))


def make_lattice() -> QuantizedWeights:
    return QuantizedWeights(np.arange(-20, WEIGHTS - 20, dtype=np.int32), key=KEY)


def apply(
    lattice: QuantizedWeights, scrub: Scrub, indices: list[int], *, magnitude: int = 3, negative: bool = False
) -> None:
    words = make_words(indices, negative)
    lattice.apply(words, magnitude, codec.digest_words(words, magnitude, KEY))
    scrub.note(words, magnitude)


@given(st.lists(st.integers(1, 20) | UPDATES))
def test_whatever_updates_come_between_the_slices_intact_memory_is_found_intact(
    events: list[int | tuple[set[int], bool, int]],
) -> None:
    lattice = make_lattice()
    scrub = Scrub(lattice)
    for event in [*events, *[WEIGHTS] * 2]:
        if isinstance(event, int):
            assert scrub.advance(event) is not False
        else:
            apply(lattice, scrub, list(event[0]), negative=event[1], magnitude=event[2])


@given(index=st.integers(0, WEIGHTS - 1), bit=st.integers(0, 31), at=st.integers(0, WEIGHTS - 1))
def test_any_flipped_bit_is_found_in_the_round_that_sees_it_or_the_next(
    index: int, bit: int, at: int
) -> None:
    lattice = make_lattice()
    scrub = Scrub(lattice)
    apply(lattice, scrub, [0, 17])
    assert scrub.advance(at) is None
    lattice.coordinates.view(np.uint32)[index] ^= np.uint32(1 << bit)
    apply(lattice, scrub, [0, index, WEIGHTS - 1], negative=True)
    assert scrub.advance(WEIGHTS) is (index < at)
    assert scrub.advance(WEIGHTS) is False
    lattice.coordinates.view(np.uint32)[index] = 0  # mended, and checked against the digest from the start
    lattice.digest = lattice.recompute_digest()
    assert scrub.advance(WEIGHTS) is True


def test_a_round_ends_after_the_last_slice_and_the_next_begins() -> None:
    scrub = Scrub(make_lattice())
    assert [scrub.advance(20) for _ in range(6)] == [None, None, True, None, None, True]


@pytest.mark.parametrize("forgotten", ["note", "update"])
def test_an_update_that_only_one_of_the_two_sees_is_found(forgotten: str) -> None:
    lattice = make_lattice()
    scrub = Scrub(lattice)
    scrub.advance(10)
    words = make_words([5, 30])
    if forgotten == "note":
        lattice.apply(words, 3, codec.digest_words(words, 3, KEY))
    else:
        scrub.note(words, 3)
    assert scrub.advance(WEIGHTS) is False
