from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from p2psgd.client.buckets import BUCKET_NUMBERS, JOINED_NUMBERS, NOTHING_BEGUN, BucketPlan, Range, clip
from p2psgd.wire.ring_messages import BUCKETS_MAX


def plan_of(sizes: list[int]) -> BucketPlan:
    return BucketPlan(tuple((f"t{number}", (size,)) for number, size in enumerate(sizes)))


def give(plan: BucketPlan, order: list[int]) -> list[Range]:
    """The buckets of a round in which these tensors are begun and the rest is not."""
    begun, buckets = NOTHING_BEGUN, []
    for number in order:
        begun, ready = plan.begin(begun, f"t{number}")
        buckets += ready
    return buckets + plan.rest(begun)


@given(st.lists(st.integers(1, 2 * JOINED_NUMBERS), min_size=1, max_size=30), st.randoms())
def test_whatever_is_begun_in_whatever_order_each_weight_is_in_one_bucket(
    sizes: list[int], random: Random
) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    for some in (order, order[: len(order) // 2], []):
        buckets = give(plan_of(sizes), some)
        assert all(begin < end for begin, end in buckets)
        ends = sorted(buckets)
        assert [end for _, end in ends[:-1]] == [begin for begin, _ in ends[1:]]
        assert (ends[0][0], ends[-1][1]) == (0, sum(sizes))


def test_neighbours_wait_for_each_other_until_there_is_enough() -> None:
    plan = plan_of([10, 10, JOINED_NUMBERS, 10])
    begun, ready = plan.begin(NOTHING_BEGUN, "t1")
    assert ready == []
    begun, ready = plan.begin(begun, "t0")
    assert ready == []
    begun, ready = plan.begin(begun, "t2")
    assert ready == [(0, 20 + JOINED_NUMBERS)]
    assert plan.rest(begun) == [(20 + JOINED_NUMBERS, 30 + JOINED_NUMBERS)]


def test_a_tensor_elsewhere_sends_the_one_that_waits() -> None:
    plan = plan_of([10, 10, 10, 10])
    begun, _ = plan.begin(NOTHING_BEGUN, "t0")
    begun, ready = plan.begin(begun, "t2")
    assert ready == [(0, 10)]
    assert plan.rest(begun) == [(10, 40)]


def test_a_large_tensor_is_cut_in_equal_parts() -> None:
    _, ready = plan_of([3 * BUCKET_NUMBERS - 1]).begin(NOTHING_BEGUN, "t0")
    assert len(ready) == 3
    assert {end - begin for begin, end in ready} <= {BUCKET_NUMBERS, BUCKET_NUMBERS - 1}


MANY = BUCKETS_MAX  # tensors: more than a round has buckets, with the cuts of the large ones


def test_no_round_has_more_buckets_than_a_round_may() -> None:
    every_other = [*range(0, MANY, 2), *range(1, MANY, 2)]
    assert len(give(plan_of([1] * MANY), every_other)) < BUCKETS_MAX
    huge = [2**31 // MANY] * MANY
    for order in ([], list(range(MANY)), every_other):
        assert len(give(plan_of(huge), order)) <= BUCKETS_MAX


def test_people_read_which_tensors_a_bucket_holds() -> None:
    plan = BucketPlan((("w", (2, 5)), ("b", (5,)), ("s", ())))
    assert plan.describe((0, 10)) == plan.describe((2, 7)) == ("w", "(2, 5)")
    assert plan.describe((15, 16)) == ("s", "()")
    assert plan.describe((0, 16)) == ("w to s", "16 numbers")
    assert len(clip("\N{GREEK SMALL LETTER ALPHA}" * 150).encode()) == 200
