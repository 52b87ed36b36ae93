"""Buckets of one share."""

from __future__ import annotations

import pytest

from p2psgd.core.ring.reduce import Bucket, Buckets, name_difference
from p2psgd.wire.ring_messages import ARRAY, BUCKETS_MAX, CHANGES


def changes(offset: int, count: int, name: str = "w", shape: str = "") -> Bucket:
    return Bucket(CHANGES, offset, count, name, shape or f"({count},)")


def test_a_share_is_whole_when_each_weight_is_in_it() -> None:
    buckets = Buckets(100, 200)
    for offset, count in ((60, 40), (0, 10), (30, 30)):
        buckets.add(changes(offset, count))
        assert not buckets.whole
    buckets.add(changes(10, 20))
    assert buckets.whole
    assert not buckets.of_array


def test_an_array_is_whole_by_itself() -> None:
    buckets = Buckets(100, 200)
    buckets.add(Bucket(ARRAY, 0, 200, "a", "(10, 20)"))
    assert buckets.whole
    assert buckets.of_array
    with pytest.raises(ValueError, match=r"bucket 1, 'w' \(5,\), does not go with 'a' \(10, 20\): an array"):
        buckets.add(changes(0, 5))


@pytest.mark.parametrize(
    ("bucket", "words"),
    [
        (changes(0, 0), "bucket 1, 'w' (0,), holds no numbers"),
        (changes(90, 11), "bucket 1, 'w' (11,), ends at weight 101 of 100"),
        (changes(15, 10), "has weights that another bucket of the round has too"),
        (changes(25, 10), "has weights that another bucket of the round has too"),
        (changes(20, 10), "has weights that another bucket of the round has too"),
        (changes(22, 2), "has weights that another bucket of the round has too"),
        (changes(0, 100), "has weights that another bucket of the round has too"),
        (Bucket(ARRAY, 0, 10, "a", "(10,)"), "does not go with 'w' (10,): an array is a round by itself"),
    ],
)
def test_a_bucket_that_cannot_be_is_named(bucket: Bucket, words: str) -> None:
    buckets = Buckets(100, 200)
    buckets.add(changes(20, 10))
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (all of it is looked at)
        buckets.add(bucket)
    assert words in str(refusal.value)
    assert len(buckets) == 1
    buckets.add(changes(30, 70))
    buckets.add(changes(0, 20))
    assert buckets.whole


def test_an_array_has_its_limit() -> None:
    for bucket in (Bucket(ARRAY, 0, 201, "a", "(201,)"), Bucket(ARRAY, 1, 10, "a", "(10,)")):
        with pytest.raises(ValueError, match="at most 200 fit"):
            Buckets(100, 200).add(bucket)


def test_there_are_not_endlessly_many() -> None:
    buckets = Buckets(BUCKETS_MAX + 1, 1)
    for place in range(BUCKETS_MAX):
        buckets.add(changes(place, 1))
    with pytest.raises(ValueError, match=f"is one too many: a round has at most {BUCKETS_MAX}"):
        buckets.add(changes(BUCKETS_MAX, 1))


def test_a_difference_names_both() -> None:
    own = changes(0, 340, "hidden.0.weight", "(512, 340)")
    for other, words in (
        (changes(0, 341, "hidden.0.weight", "(512, 341)"), "'hidden.0.weight' (512, 341) at node-1"),
        (Bucket(ARRAY, 0, 7, "mine", "(7,)"), "array 'mine' (7,) at node-1"),
    ):
        assert name_difference(2, 7, own, other, "node-1") == (
            f"bucket 2 of round 7 is tensor 'hidden.0.weight' (512, 340) here and {words}: "
            "all nodes must give the same tensors in the same order"
        )
    moved = changes(10, 340, "hidden.0.weight", "(512, 340)")
    words = name_difference(0, 1, own, moved, "node-1")
    assert "(512, 340), 340 numbers from 0 on, here and 340 numbers from 10 on at node-1" in words
