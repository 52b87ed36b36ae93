"""How often something may happen for each of many keys."""

from __future__ import annotations

from p2psgd.base.aio import KEYS_MAX, TokenBuckets


def test_a_burst_passes_and_then_one_in_each_interval() -> None:
    buckets = TokenBuckets(burst=3, interval_s=2.0)
    assert [buckets.take("a", 100.0) for _ in range(5)] == [True, True, True, False, False]
    assert [buckets.take("a", 101.9), buckets.take("a", 102.0), buckets.take("a", 102.1)] == [
        False,
        True,
        False,
    ]
    assert [buckets.take("a", 200.0) for _ in range(4)] == [True, True, True, False]


def test_one_key_takes_nothing_from_another() -> None:
    buckets = TokenBuckets(burst=1, interval_s=60.0)
    assert buckets.take("a", 0.0)
    assert not buckets.take("a", 0.0)
    assert buckets.take("b", 0.0)


def test_keys_beyond_the_most_share_one_bucket_and_wash_out_none_of_the_others() -> None:
    buckets = TokenBuckets(burst=2, interval_s=60.0)
    for key in range(KEYS_MAX):
        assert [buckets.take(f"{key}", 0.0) for _ in range(3)] == [True, True, False]
    assert [buckets.take(f"more {key}", 0.0) for key in range(5)] == [True, True, False, False, False]
    assert not buckets.take("0", 0.0)
    assert len(buckets) == KEYS_MAX + 1


def test_full_buckets_make_room_for_other_keys() -> None:
    buckets = TokenBuckets(burst=2, interval_s=1.0)
    for key in range(KEYS_MAX):
        assert buckets.take(f"{key}", 0.0)
    assert buckets.take("later", 1.0)
    assert len(buckets) == 1
