from __future__ import annotations

from p2psgd.node.trainer import LOOKS_MAX, OWN, LastSteps, Pace


def test_the_rate_is_that_of_the_last_looks() -> None:
    pace = Pace()
    assert pace.is_due(0.0)
    pace.look({OWN: 100}, 0.0)
    assert (pace.per_s, pace.is_due(0.9), pace.is_due(1.0)) == ({}, False, True)
    pace.look({OWN: 150}, 2.0)
    assert pace.per_s == {OWN: 25.0}
    for second in range(3, 3 + LOOKS_MAX):
        pace.look({OWN: 150}, float(second))
    assert pace.per_s == {OWN: 0.0}


def test_the_steps_that_a_node_had_made_when_it_was_first_seen_are_not_of_its_rate() -> None:
    pace = Pace()
    pace.look({OWN: 0, 5: 10}, 0.0)
    pace.look({OWN: 2, 5: 14, 7: 1_000_000}, 2.0)
    assert pace.per_s == {OWN: 1.0, 5: 2.0}


def test_last_steps_are_made_12_failure_timeouts_after_one_or_when_nobody_else_is_left() -> None:
    last = LastSteps(failure_timeout_s=5.0)
    assert not last.are_made(7, 100.0, alone=False)
    assert not last.are_made(7, 159.0, alone=False)
    assert not last.are_made(8, 160.0, alone=False)
    assert not last.are_made(8, 219.0, alone=False)
    assert last.are_made(8, 220.0, alone=False)
    assert last.are_made(9, 221.0, alone=True)
