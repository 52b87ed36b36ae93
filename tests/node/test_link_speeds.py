from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from p2psgd.core.timing import Timing
from p2psgd.node.backpressure import Backpressure, LinkSpeeds

NAMES = {2: "node-2", 3: "node-3"}


def watch(
    speeds: LinkSpeeds, rates: dict[int, float], *, behind: int = 0, looks: int = 40, start: int = 0
) -> None:
    """100 updates/s of 50 bytes are made; each peer takes its own rate of them."""
    for number in range(start, start + looks):
        now = number * 0.25
        applied = round(100 * now) + 1_000
        acknowledged = {node: round(rate * now) + 1_000 - behind for node, rate in rates.items()}
        speeds.look(now, applied=applied, applied_bytes=50 * applied, acknowledged=acknowledged)


def test_a_peer_that_takes_half_of_what_is_made_is_named_with_both_figures() -> None:
    speeds = LinkSpeeds(failure_timeout_s=1.25)
    watch(speeds, {2: 100.0, 3: 50.0})
    (slow,) = speeds.slow(NAMES)
    assert (slow.id, slow.node) == (f"{3:016x}", "node-3")
    assert (slow.needed, slow.available) == pytest.approx((5_000, 2_500), rel=0.05)


def test_one_that_catches_up_is_not_slow() -> None:
    speeds = LinkSpeeds(failure_timeout_s=1.25)
    watch(speeds, {3: 120.0}, behind=900)
    assert speeds.slow(NAMES) == []


def test_one_that_lags_by_less_than_a_failure_timeout_is_not_slow() -> None:
    speeds = LinkSpeeds(failure_timeout_s=1.25)
    watch(speeds, {3: 80.0}, looks=16)
    assert speeds.slow(NAMES) == []


def test_a_link_is_judged_only_after_three_failure_timeouts() -> None:
    speeds = LinkSpeeds(failure_timeout_s=1.25)
    watch(speeds, {2: 100.0})
    watch(speeds, {2: 100.0, 3: 10.0}, start=40, looks=14)
    assert speeds.slow(NAMES) == []
    watch(speeds, {2: 100.0, 3: 10.0}, start=54, looks=2)
    assert [slow.node for slow in speeds.slow(NAMES)] == ["node-3"]


def test_nothing_is_slow_while_nothing_is_made() -> None:
    speeds = LinkSpeeds(failure_timeout_s=1.25)
    for number in range(40):
        speeds.look(number * 0.25, applied=100, applied_bytes=5_000, acknowledged={2: 0})
    assert speeds.slow(NAMES) == []


def test_nothing_is_slow_after_a_snapshot() -> None:
    replica: Any = SimpleNamespace(timing=Timing(1.25), spec=SimpleNamespace(mode="async"), names=NAMES)
    trainer: Any = None
    backpressure = Backpressure(replica, trainer, trainer, now=float)
    watch(backpressure._speeds, {3: 10.0})
    assert backpressure.slow_links()
    backpressure.replica_replaced()
    assert backpressure.slow_links() == []


def test_looks_taken_too_often_do_not_shorten_the_time_looked_at() -> None:
    speeds = LinkSpeeds(failure_timeout_s=1.25)
    watch(speeds, {3: 10.0}, looks=16)
    for _ in range(100):
        speeds.look(3.7501, applied=1_375, applied_bytes=68_750, acknowledged={3: 1_375})
    assert [slow.node for slow in speeds.slow(NAMES)] == ["node-3"]
