"""Every sample once per epoch over all ranks, whatever their number; the learning rate's halvings."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.recipes.schedule import Order, Walk, learning_rate


def walks(samples: int, batch: int, world_size: int, warm: int, positions: int | None) -> list[Walk]:
    return [Walk(samples, batch, rank, world_size, warm, positions) for rank in range(world_size)]


@given(
    samples=st.integers(1, 90),
    batch=st.integers(1, 20),
    world_size=st.integers(1, 9),
    epochs=st.integers(1, 4),
    warm_part=st.floats(0, 0.5),
)
def test_each_sample_is_used_once_per_epoch_over_all_shares(
    samples: int, batch: int, world_size: int, epochs: int, warm_part: float
) -> None:
    positions = samples * epochs
    warm = int(warm_part * positions) // batch
    order = Order(samples, seed=7)
    used: Counter[tuple[int, int]] = Counter()
    for walk in walks(samples, batch, world_size, warm, positions):
        assert walk.steps is not None
        sizes: list[int] = []
        for step in range(walk.steps):
            at = walk.at(step)
            assert 1 <= len(at) <= batch
            assert walk.samples_before(step) == sum(sizes)
            sizes.append(len(at))
            used.update(zip((at // samples).tolist(), order.rows(at).tolist(), strict=True))
        assert len(walk.at(walk.steps)) == 0
        assert walk.samples_before(walk.steps) == sum(sizes)
    assert used == Counter((epoch, row) for epoch in range(epochs) for row in range(samples))


def test_share_0_alone_walks_the_warm_start_then_positions_are_dealt_out() -> None:
    first, second = walks(samples=100, batch=4, world_size=2, warm=2, positions=20)
    assert [first.at(m).tolist() for m in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 10, 12, 14], [16, 18]]
    assert [second.at(m).tolist() for m in range(2)] == [[9, 11, 13, 15], [17, 19]]


def test_one_share_walks_straight_on() -> None:
    (walk,) = walks(samples=10, batch=4, world_size=1, warm=1, positions=20)
    assert np.concatenate([walk.at(m) for m in range(5)]).tolist() == list(range(20))
    assert walk.steps == 5


def test_more_shares_than_samples_leave_some_with_nothing() -> None:
    assert [walk.steps for walk in walks(2, 4, 3, 0, 2)] == [1, 1, 0]


def test_a_walk_without_an_end_goes_on() -> None:
    walk = Walk(samples=10, batch=4, rank=1, world_size=2, warm_steps=0, positions=None)
    assert walk.steps is None
    assert walk.at(1000).tolist() == [8001, 8003, 8005, 8007]
    assert walk.samples_before(1000) == 4000


def test_shares_that_know_different_warm_starts_still_share_nothing() -> None:
    first = Walk(100, 3, 0, 2, 3, None)
    second = Walk(100, 3, 1, 2, 5, None)
    assert set(first.at(3) % 2) == {0}
    assert set(second.at(0) % 2) == {1}


def test_permutations_are_the_same_on_every_machine_and_differ_by_epoch_and_seed() -> None:
    order = Order(10, seed=1)
    rows = order.rows(np.arange(20))
    assert rows.tolist() == [9, 2, 4, 7, 5, 0, 8, 6, 3, 1, 5, 6, 3, 0, 7, 2, 1, 4, 9, 8]
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10].tolist() != rows[10:].tolist()
    assert Order(10, seed=2).rows(np.arange(10)).tolist() != rows[:10].tolist()


def test_order_remembers_a_bounded_number_of_permutations() -> None:
    order = Order(3, seed=1)
    rows = order.rows(np.arange(30))
    assert len(order._permutations) == Order.REMEMBERED
    assert order.rows(np.arange(30)).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("epoch", "rate"), [(0, 8), (1.99, 8), (2, 4), (2.49, 4), (2.5, 2), (3.1, 1), (1e9, 0)]
)
def test_the_learning_rate_holds_and_then_halves(epoch: float, rate: float) -> None:
    assert learning_rate(8.0, epoch, hold_epochs=2, halve_every_epochs=0.5) == rate
