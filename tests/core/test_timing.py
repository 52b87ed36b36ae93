"""The clock by which a node judges its peers."""

from __future__ import annotations

import pytest

from p2psgd.core.timing import RunningClock


def test_while_the_process_runs_it_goes_with_the_monotonic_clock() -> None:
    clock = RunningClock(100.0, gap_s_max=1.0)
    assert [clock.read(now) for now in (100.0, 100.5, 101.5, 101.5, 102.0)] == [
        100.0,
        100.5,
        101.5,
        101.5,
        102.0,
    ]
    assert clock.paused_s == 0


def test_of_a_pause_no_more_than_the_gap_is_counted() -> None:
    clock = RunningClock(100.0, gap_s_max=1.0)
    assert clock.read(160.0) == 101.0
    assert clock.read(160.5) == 101.5
    assert clock.read(200.5) == 102.5
    assert clock.paused_s == pytest.approx(98.0)


def test_it_never_goes_back() -> None:
    clock = RunningClock(100.0, gap_s_max=1.0)
    assert [clock.read(now) for now in (100.5, 99.0, 100.5, 101.0)] == [100.5, 100.5, 100.5, 101.0]
