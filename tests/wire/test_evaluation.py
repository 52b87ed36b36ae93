"""Numbers, sets, tables, exponents of evaluations: what is packed comes back, and nothing else is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2psgd.wire import evaluation
from p2psgd.wire.evaluation import Kind, Numbers, pack_numbers, parse_numbers
from p2psgd.wire.fixed_point import (
    GROUPS_MAX,
    NOTHING,
    PORTIONS_MAX,
    bits_of,
    borders_of,
    count_groups,
    exponents_of,
    read_sums,
    round_numbers,
)
from p2psgd.wire.reject import PeerError, RejectCode

PLACE = Numbers(Kind.PART, evaluation=2, attempt=1, table=3, leader=9, offset=4)
COUNTS = st.integers(1, PORTIONS_MAX)


def refused(work: Callable[[], object]) -> RejectCode:
    with pytest.raises(PeerError) as caught:
        work()
    return caught.value.code


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_numbers_come_back(numbers: list[int]) -> None:
    place, found = parse_numbers(pack_numbers(PLACE, np.array(numbers, np.int64)), 4 + len(numbers))
    assert (place, found.tolist()) == (PLACE, numbers)


def test_numbers_that_cannot_be_are_refused() -> None:
    body = pack_numbers(PLACE, np.arange(3))
    assert refused(lambda: parse_numbers(body, 6)) is RejectCode.EVALUATION
    assert refused(lambda: parse_numbers(body[:39], 9)) is RejectCode.EVALUATION
    assert refused(lambda: parse_numbers(body[:-1], 9)) is RejectCode.CHECKSUM
    assert refused(lambda: parse_numbers(pack_numbers(PLACE, np.arange(0)), 9)) is RejectCode.EVALUATION
    for place in range(len(body)):
        damaged = bytearray(body)
        damaged[place] ^= 4
        assert refused(partial(parse_numbers, damaged, 9)) is RejectCode.CHECKSUM


@given(st.data(), COUNTS)
def test_sets_come_back(data: st.DataObject, count: int) -> None:
    chosen = data.draw(st.sets(st.integers(0, count - 1), max_size=20))
    portions = evaluation.set_of(chosen)
    assert list(evaluation.each_of(portions)) == sorted(chosen)
    assert evaluation.parse_portions(evaluation.pack_portions(portions, count), count) == portions


def test_sets_that_cannot_be_are_refused() -> None:
    for packed in (b"", b"\x00", b"\x00\x04", b"\x00\x00\x00"):
        assert refused(partial(evaluation.parse_portions, packed, 10)) is RejectCode.EVALUATION


@given(st.data(), st.integers(1, 100), st.integers(1, 9))
def test_tables_come_back(data: st.DataObject, count: int, size: int) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count))
    sets = [
        evaluation.set_of(portion for portion, at in enumerate(places) if at == place)
        for place in range(size)
    ]
    members = [(node, 7) for node in range(size)]
    packed, assignment = evaluation.pack_table(members, sets, count)
    found = evaluation.parse_table(packed, assignment, count)
    assert found == (tuple(members), tuple(sets))


def test_tables_that_cannot_be_are_refused() -> None:
    members, assignment = evaluation.pack_table([(1, 1), (2, 1)], [0b01, 0b10], 2)
    for wrong in (
        (members[:-1], assignment),
        (members, assignment[:-2]),
        (members[16:] + members[:16], assignment),
        (members[:16] * 2, assignment),
        (members[:16], assignment),
        (members, b"\x00\x00\x02\x00"),
    ):
        found = partial(evaluation.parse_table, wrong[0], wrong[1], 2)
        assert refused(found) is RejectCode.EVALUATION


def test_exponents_and_leases_that_cannot_be_are_refused() -> None:
    for values in ((1,), (1, 1025), (-1081, 1), (1, 2, 3)):
        packed = np.array(values, "<i2").tobytes()
        assert refused(partial(evaluation.parse_exponents, packed, 2)) is RejectCode.EVALUATION
    assert evaluation.parse_exponents(np.array([NOTHING, 1024], "<i2").tobytes(), 2).tolist() == [-2000, 1024]
    for leases in (b"\x00", b"\x05\x00", b"\x01\x00\x01\x00"):
        assert refused(partial(evaluation.parse_leases, leases, 5)) is RejectCode.EVALUATION


@pytest.mark.parametrize("tensors", [1, 2, 255, 256, 1000])
def test_groups_cover_all_tensors_in_order(tensors: int) -> None:
    sizes = [1 + place % 3 for place in range(tensors)]
    borders = borders_of(sizes)
    assert len(borders) == count_groups(tensors) + 1 <= GROUPS_MAX + 1
    assert (borders[0], borders[-2], borders[-1]) == (0, sum(sizes), sum(sizes) + 1)
    assert (np.diff(borders) > 0).all()
    assert set(borders[:-2].tolist()) <= set(np.cumsum([0, *sizes]).tolist())


NUMBERS = st.floats(-1e300, 1e300, allow_subnormal=True)


@given(arrays.arrays(np.float64, 5, elements=NUMBERS), NUMBERS, COUNTS)
def test_rounded_numbers_fit_whatever_portions_there_are(
    gradient: np.ndarray, loss: float, portions: int
) -> None:
    """The sum of as many portions of the largest numbers is within 62 bits, and what comes back is close."""
    borders = borders_of([2, 3])
    limits = exponents_of(loss, gradient, borders)
    rounded = round_numbers(loss, gradient, limits, borders, portions)
    assert max(abs(int(number)) for number in rounded) * portions <= 2**62
    value, found = read_sums(rounded, limits, borders, portions)
    both = [(gradient[:2], found[:2]), (gradient[2:], found[2:]), ([loss], [value])]
    for group, (exact, near) in enumerate(both):
        if limits[group] > -900:
            error = math.ldexp(1.0, int(limits[group]) - bits_of(portions))
            assert np.abs(np.asarray(exact) - near).max() <= error


@given(
    arrays.arrays(np.float64, 5, elements=st.floats(allow_nan=False, allow_infinity=False)),
    arrays.arrays(np.int64, 6, elements=st.integers(-(2**62), 2**62)),
    st.integers(-1080, 1024),
    COUNTS,
)
def test_scaling_gives_the_bits_of_ldexp(
    gradient: np.ndarray, sums: np.ndarray, limit: int, portions: int
) -> None:
    """Which another implementation may use: a product and ldexp round alike, subnormal numbers included."""
    borders, bits = borders_of([5]), bits_of(portions)
    limits = np.array([limit, 0], np.int16)
    with np.errstate(over="ignore"):
        expected = np.ldexp(sums[:-1].astype(np.float64), limit - bits)
    assert read_sums(sums, limits, borders, portions)[1].tobytes() == expected.tobytes()
    within = np.where(np.frexp(gradient)[1] <= limit, gradient, 0.0)
    rounded = round_numbers(0.0, within, limits, borders, portions)
    assert (rounded[:-1] == np.rint(np.ldexp(within, bits - limit)).astype(np.int64)).all()


def test_the_exponent_is_the_least_power_of_two_above_all() -> None:
    borders = borders_of([1, 1, 1])
    found = exponents_of(0.0, np.array([1.0, -0.75, 4.0]), borders)
    assert found.tolist() == [1, 0, 3, NOTHING]
