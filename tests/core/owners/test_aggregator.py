"""An owner's sum is exact: what goes out and what stays is what came in, whatever moves meanwhile."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.core.owners.aggregator import KINDS_MAX, Aggregator, Update
from p2psgd.core.owners.ranges import range_of
from p2psgd.core.run_spec import RunSpec
from p2psgd.wire import codec
from tests.wire.arrays import uint32

TENSORS = (("a", (5, 4)), ("b", (7,)), ("c", ()), ("d", (12,)))
WEIGHTS = sum(math.prod(shape) for _, shape in TENSORS)
SPEC = RunSpec(TENSORS, -20, "owners", "", bytes(32), "stall")
LARGEST = codec.MAGNITUDE_MAX
ALL = (0, WEIGHTS)


def owner_of(new: tuple[int, int] = ALL) -> Aggregator:
    aggregator = Aggregator(SPEC)
    assert aggregator.move(new) == []
    return aggregator


def take(aggregator: Aggregator, members: int) -> list[Update]:
    weights = np.zeros(len(aggregator.residual), np.float32)
    return aggregator.take(members, alone=members == 1, weights=lambda: weights)


def words(*changes: int) -> NDArray[np.uint32]:
    """Words of these weights, plus; of -index - 1 minus."""
    return uint32(sorted(index << 1 if index >= 0 else (-index - 1) << 1 | 1 for index in changes))


def count(total: Counter[int], updates: list[Update], *, sign: int = 1) -> None:
    for magnitude, each in updates:
        for word in each.tolist():
            total[word >> 1] += sign * (-magnitude if word & 1 else magnitude)


def left(aggregator: Aggregator) -> Counter[int]:
    """Return what it has added up and not published, by weight."""
    begin = aggregator.range[0]
    total = Counter({begin + place: int(value) for place, value in enumerate(aggregator.residual)})
    total.update(aggregator._outside)
    return total


def assert_updates(updates: list[Update]) -> None:
    """They can be packed."""
    for magnitude, each in updates:
        assert 1 <= magnitude <= LARGEST
        assert len(each)
        codec.encode(each, WEIGHTS)  # sorted, distinct, below P


CONTRIBUTIONS = st.builds(
    lambda indices, negative, magnitude: (uint32([i << 1 | negative for i in sorted(indices)]), magnitude),
    st.sets(st.integers(0, WEIGHTS - 1), min_size=1, max_size=8),
    st.integers(0, 1),
    st.one_of(st.integers(1, 9), st.integers(1, LARGEST)),
)
MEMBERS = st.integers(1, 9)
RANGES = st.builds(lambda members, place: range_of(place % members, members, WEIGHTS), MEMBERS, MEMBERS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), CONTRIBUTIONS),
        st.tuples(st.just("take"), MEMBERS),
        st.tuples(st.just("move"), st.one_of(RANGES, st.just((0, 0)))),
    ),
    max_size=30,
)


@settings(max_examples=300)
@given(RANGES, STEPS)
def test_what_goes_out_and_what_stays_is_what_came_in(
    first: tuple[int, int], steps: list[tuple[str, tuple[NDArray[np.uint32], int]]]
) -> None:
    aggregator, total = owner_of(first), Counter[int]()
    for kind, argument in steps:
        match kind:
            case "add":
                each, magnitude = argument
                aggregator.add(each, magnitude)
                count(total, [(magnitude, each)])
                updates = []
            case "take":
                updates = take(aggregator, argument)  # type: ignore[arg-type]
            case _:
                before = aggregator.range
                updates = aggregator.move(argument)  # type: ignore[arg-type]
                for _, each in updates:  # of the range that it has lost, and of nothing else
                    assert all(before[0] <= word >> 1 < before[1] for word in each.tolist())
        assert_updates(updates)
        count(total, updates, sign=-1)
        assert +total == +left(aggregator)
        assert -total == -left(aggregator)


@given(st.lists(CONTRIBUTIONS, max_size=9), st.randoms())
def test_the_order_of_contributions_does_not_matter(
    contributions: list[tuple[NDArray[np.uint32], int]], random: Random
) -> None:
    here, there = owner_of((3, 30)), owner_of((3, 30))
    for each, magnitude in contributions:
        here.add(each, magnitude)
    random.shuffle(contributions)
    for each, magnitude in contributions:
        there.add(each, magnitude)
    assert left(here) == left(there)


def test_an_owner_alone_publishes_all_at_once() -> None:
    aggregator = owner_of()
    aggregator.add(words(1, -6, 39), 7)
    aggregator.add(words(1), 3)
    total = Counter[int]()
    count(total, take(aggregator, 1))
    assert total == {1: 10, 5: -7, 39: 7}
    assert take(aggregator, 1) == []
    assert not any(left(aggregator).values())


def test_what_is_not_due_stays_and_counts_later() -> None:
    aggregator = owner_of()
    aggregator.add(words(0), 24)
    [(magnitude, each)] = take(aggregator, 2)
    assert (magnitude, each.tolist()) == (24, words(0).tolist())
    assert left(aggregator)[0] == 0
    aggregator.add(words(0), 24)
    aggregator.add(words(0), 17)
    total = Counter({0: magnitude})
    for updates in iter(lambda: take(aggregator, 2), []):
        count(total, updates)
    assert total[0] > 24
    assert 0 < left(aggregator)[0] <= 17
    assert total[0] + left(aggregator)[0] == 65


def test_what_came_does_not_wait_for_ever() -> None:
    """Nothing has reached its magnitude, but its contributors wait until an update takes it into account."""
    aggregator = owner_of()
    aggregator.add(words(0), 1000)
    take(aggregator, 2)
    aggregator.add(words(3, 4), 2)
    aggregator.add(words(4), 3)
    [(magnitude, each)] = take(aggregator, 2)
    assert (magnitude, each.tolist()) == (5, words(4).tolist())
    assert left(aggregator)[3] == 2


def test_of_a_tensor_with_as_many_indices_as_weights_all_goes_out() -> None:
    aggregator, total = owner_of(), Counter[int]()
    for values in ((3, 5, 1), (-7, 2, 4)):  # of two nodes, digit by digit, of weights 20 to 26
        for digit in (4, 2, 1):
            changed = [20 + place for place, value in enumerate(values) if abs(value) & digit]
            aggregator.add(words(*(each if values[each - 20] > 0 else -each - 1 for each in changed)), digit)
        aggregator.add(words(23, 24, 25, 26), 1000)
    aggregator.add(words(2), 3)  # of another tensor
    count(total, take(aggregator, 2))
    assert +total + -total == {21: 7, 22: 5, 23: 2000, 24: 2000, 25: 2000, 26: 2000, 2: 3, 20: 4}
    assert total[20] == -4


def test_contributions_that_cancel_publish_nothing() -> None:
    aggregator = owner_of((0, 20))
    for each in (words(1, 30), words(-2, -31)):
        aggregator.add(each, 5)
    assert take(aggregator, 3) == []
    assert take(aggregator, 1) == []


def test_what_is_far_beyond_its_magnitude_goes_in_steps() -> None:
    aggregator = owner_of()
    for _ in range(1000):
        aggregator.add(words(1), 1)
    taken = [updates[0][0] for updates in iter(lambda: take(aggregator, 1000), [])]
    assert sum(taken) + left(aggregator)[1] == 1000
    assert taken[0] == 64  # 16 x 4 times the magnitude


@pytest.mark.parametrize("members", [1, 2])
def test_a_sum_beyond_the_largest_magnitude_is_whole(members: int) -> None:
    aggregator, total = owner_of(), Counter[int]()
    for _ in range(20):
        aggregator.add(words(-4, 8), LARGEST)
    for updates in iter(lambda: take(aggregator, members), []):
        assert_updates(updates)
        count(total, updates)
    assert total == {3: -20 * LARGEST, 8: 20 * LARGEST}


@pytest.mark.parametrize(("alike", "updates_count"), [(True, 1), (False, 6)])
def test_values_that_lie_outside_of_the_range_go_out_exactly(alike: bool, updates_count: int) -> None:
    """In one update for each magnitude while these are few, else in one for each binary digit."""
    sizes = [9 if alike else index + 1 for index in range(WEIGHTS)]
    assert alike or len(set(sizes)) > KINDS_MAX
    aggregator, total = owner_of((0, 0)), Counter[int]()
    for index in range(WEIGHTS):
        aggregator.add(words(index if index % 3 else -index - 1), sizes[index])
    updates = take(aggregator, 4)
    count(total, updates)
    assert total == {index: size if index % 3 else -size for index, size in enumerate(sizes)}
    assert len(updates) == updates_count
    assert not any(left(aggregator).values())


def test_a_range_that_moves_takes_along_what_it_keeps() -> None:
    aggregator, total = owner_of((0, 20)), Counter[int]()
    aggregator.add(words(2, 15, 30, 39), 6)
    aggregator.add(words(-16), 1)
    count(total, aggregator.move((10, 35)))
    assert total == {2: 6}  # nobody but this node had it
    assert aggregator.residual[15 - 10] == 5
    assert aggregator.residual[30 - 10] == 6  # it lay outside before
    assert aggregator._outside == {39: 6}
    total.clear()
    count(total, take(aggregator, 1))
    assert total == {15: 5, 30: 6, 39: 6}


def test_a_range_that_is_lost_is_given_away_whole() -> None:
    aggregator, total = owner_of(), Counter[int]()
    aggregator.add(words(2, -16, 39), LARGEST)
    aggregator.add(words(2), LARGEST)
    count(total, aggregator.move((0, 0)))
    assert total == {2: 2 * LARGEST, 15: -LARGEST, 39: LARGEST}
    assert len(aggregator.residual) == 0
    assert take(aggregator, 4) == []


@pytest.mark.parametrize("members", [1, 2])
def test_sums_that_no_run_lives_to_see_wrap_at_32_bits_and_end_nothing(members: int) -> None:
    """A peer can send what no trainer makes: 2,048 of the largest are 2^31, beyond int32."""
    aggregator = owner_of((0, 20))
    for _ in range(2**31 // LARGEST):
        aggregator.add(words(-4, 33), LARGEST)
    assert (aggregator.residual[3], aggregator._outside[33]) == (-(2**31), 2**31)
    total = Counter[int]()
    count(total, aggregator.move((10, 40)))
    assert total == {3: -(2**31)}
    aggregator.add(words(-34), 1)
    assert aggregator.residual[33 - 10] == 2**31 - 1
    total = Counter[int]()
    for _ in range(3):
        updates = take(aggregator, members)
        assert_updates(updates)
        count(total, updates)
    assert total[33] > 0
    assert total[33] + left(aggregator)[33] == 2**31 - 1


@pytest.mark.parametrize("members", [1, 2])
def test_the_lowest_sum_of_all_goes_out_too(members: int) -> None:
    aggregator = owner_of()
    for _ in range(2**31 // LARGEST):
        aggregator.add(words(-4), LARGEST)
    updates = take(aggregator, members)
    assert_updates(updates)
    total = Counter[int]()
    count(total, updates)
    assert total[3] < 0
    assert total[3] + left(aggregator)[3] == -(2**31)


@pytest.mark.parametrize("most", [3, 4096])
@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_contributions_changes_nothing(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor how many of them are kept one by one: in rounds all that goes out follows from what came in."""
    chance = Random(seed)
    rounds = [
        [
            (words(*chance.sample(range(WEIGHTS), chance.randint(1, 12))), chance.choice((3, 20, 100, 333)))
            for _ in range(chance.randint(1, 9))
        ]
        for _ in range(20)
    ]
    one, other = owner_of(), owner_of()
    for came in rounds:
        monkeypatch.setattr("p2psgd.core.owners.aggregator.CAME_MAX", 4096)
        for each in came:
            one.add(*each)
        chance.shuffle(came)
        monkeypatch.setattr("p2psgd.core.owners.aggregator.CAME_MAX", most)
        for each in came:
            other.add(*each)
        taken, taken_other = take(one, 4), take(other, 4)
        assert [(size, each.tolist()) for size, each in taken] == [
            (size, each.tolist()) for size, each in taken_other
        ]
    assert np.array_equal(one.residual, other.residual)


def test_a_change_beyond_what_float32_holds_in_quanta_is_the_largest_one() -> None:
    mode = "owners-rounds-nesterov(momentum=0.9)"
    aggregator = Aggregator(RunSpec(TENSORS, -20, mode, "", bytes(32), "stall"))
    aggregator.move(ALL)
    assert aggregator.rule is not None
    aggregator.rule.state.arrays["velocity"][3] = 3e38  # a peer's state may bring as much
    aggregator.add(words(3), 1, rate=0.1)
    assert {int(word) >> 1 for _, each in take(aggregator, 1) for word in each} == {3}


def test_what_an_owner_that_does_not_publish_keeps_of_contributions_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounded, other = owner_of(), owner_of()
    came = [(words(*range(place, WEIGHTS)), 1 + place) for place in range(9)]
    for each in came:
        other.add(*each)
    monkeypatch.setattr("p2psgd.core.owners.aggregator.CAME_BYTES_MAX", 300)
    for each in came:
        bounded.add(*each)
        assert sum(kept.nbytes for kept, _, _ in bounded._came) < 300
    assert not np.array_equal(bounded._counts, other._counts)  # some were counted before
    taken, taken_other = take(bounded, 4), take(other, 4)
    assert [(size, each.tolist()) for size, each in taken] == [
        (size, each.tolist()) for size, each in taken_other
    ]
