"""The clock by which a node judges its peers."""

from __future__ import annotations

import pytest

from p2psgd.node.run import RunningClock


def clock_of(*readings: float) -> RunningClock:
    """A clock made at 100 s of the monotonic one, which then shows these."""
    return RunningClock(iter((100.0, *readings)).__next__, gap_s_max=1.0)


def test_while_the_process_runs_it_goes_with_the_monotonic_clock() -> None:
    readings = [100.0, 100.5, 101.5, 101.5, 102.0]
    clock = clock_of(*readings)
    assert [clock.read() for _ in readings] == readings
    assert clock.paused_s == 0


def test_of_a_pause_no_more_than_the_gap_is_counted() -> None:
    clock = clock_of(160.0, 160.5, 200.5)
    assert [clock.read() for _ in range(3)] == [101.0, 101.5, 102.5]
    assert clock.paused_s == pytest.approx(98.0)


def test_it_never_goes_back() -> None:
    clock = clock_of(100.5, 99.0, 100.5, 101.0)
    assert [clock.read() for _ in range(4)] == [100.5, 100.5, 100.5, 101.0]
