from __future__ import annotations

import json

import pytest

from tests.chaos.account import build, longest_pause, made_and_lost, pauses_after, text
from tests.chaos.chaos import Deed
from tests.chaos.counts import Sums
from tests.chaos.faults import Cut, Fault, KilledDaemon, KilledTrainer, Stopped
from tests.chaos.quiet import QuietPoint

A, B = ("a", 1), ("b", 2)


def kill(node: int, at: float, *, hit: bool = True) -> Deed:
    return Deed(KilledDaemon(at, node, 1.0), at, hit)


def every(interval: float, count: int, *, start: float = 0.0) -> list[float]:
    return [start + interval * number for number in range(count)]


def test_the_longest_pause_is_that_around_or_within_the_time_looked_at() -> None:
    stamps = [1.0, 1.1, 1.2, 2.2, 2.3]
    assert longest_pause(stamps, 1.15, 2.3) == pytest.approx(1.0)
    assert longest_pause(stamps, 1.5, 1.6) == pytest.approx(0.4)  # begun at 1.2, not over at 1.6
    assert longest_pause(stamps, 1.0, 1.2) == pytest.approx(0.1)
    assert longest_pause(stamps, 2.3, 5.0) == pytest.approx(2.7)
    assert longest_pause(stamps, 0.0, 5.0) is None  # it had not begun
    assert longest_pause([], 0.0, 5.0) is None


def pauses(
    rounds: list[tuple[list[Deed], float]],
    stamps: dict[int, list[float]],
    what: type[Fault] = KilledDaemon,
) -> list[tuple[float, int, float]]:
    """Rounded."""
    return [(round(pause, 6), node, at) for pause, node, at in pauses_after(what, rounds, stamps)]


def test_pauses_are_those_of_nodes_to_which_nothing_was_done() -> None:
    stamps = {0: every(0.1, 200), 1: every(0.1, 200), 2: [*every(0.1, 51), *every(0.1, 100, start=5.8)]}
    assert pauses([([kill(0, 5.0)], 20.0)], stamps) == [(0.8, 2, 5.0)]
    cut = Deed(Cut(4.0, 1, 2, 3.0, True), 4.0, True)
    assert pauses([([cut, kill(0, 5.0)], 20.0)], stamps) == []
    stop = Deed(Stopped(5.0, 0, 3.0), 5.0, True)
    assert pauses([([stop], 20.0)], stamps) == []
    assert pauses([([stop], 20.0)], stamps, Stopped) == [(0.8, 2, 5.0)]
    trainer = Deed(KilledTrainer(5.2, 2), 5.2, True)
    assert pauses([([kill(0, 5.0), trainer], 20.0)], stamps) == [(0.1, 1, 5.0)]


def test_a_kill_that_found_nobody_and_the_pause_after_the_healing_do_not_count() -> None:
    stamps = {0: every(0.1, 100), 1: every(0.1, 60)}
    assert pauses([([kill(0, 5.0, hit=False)], 6.0)], stamps) == []
    assert pauses([([kill(0, 5.0)], 5.9)], stamps) == [(0.1, 1, 5.0)]


def test_lost_is_what_was_told_and_has_arrived_nowhere() -> None:
    assert made_and_lost({A: 10, B: 5}, {A: 10, B: 5}) == (15, 0)
    assert made_and_lost({A: 10, B: 5}, {A: 7}) == (15, 8)
    assert made_and_lost({A: 10}, {A: 12, B: 4}) == (12, 0)  # its last status came before its last update


def account_of(faults: list[Fault], points: list[QuietPoint], findings: list[str]) -> str:
    done = [Deed(fault, fault.at, True) for fault in faults]
    account = build(
        seed=7,
        began=0.0,
        wall_s=61.0,
        nodes=[],
        rounds=[(done, 20.0)],
        quiet_points=points,
        sums=Sums(begun=120, ended=119, missing=2.5, surplus=0.25),
        findings=findings,
    )
    assert json.loads(json.dumps(account)) == account
    return text(account)


def test_the_account_names_faults_quiet_points_and_the_verdict() -> None:
    point = QuietPoint(31.0, 2.25, (), {A: 10, B: 5}, "00000000000000ff", 0.925)
    words = account_of([KilledDaemon(1.0, 0, 2.0), Cut(1.0, 0, 1, 3.0, False)], [point], [])
    assert "chaos of 61 s, seed 7" in words
    assert "    1  kill -9 of a daemon\n      1  one-way link" in words
    assert any(
        row.split() == ["31", "2.2", "2", "15", "92.5", "%", "00000000000000ff"] for row in words.splitlines()
    )
    assert "mini-batches: 120 begun, 119 ended, 2.5 of these do not count, 0.2 count too often" in words
    assert words.endswith("passed")


def test_the_account_of_a_failure_says_what_was_found_and_not_that_it_passed() -> None:
    point = QuietPoint(91.0, 60.0, ("not equal",), {}, None, None)
    words = account_of([], [point], ["not equal", "node-1 says: no"])
    assert "NOT EQUAL" in words
    assert words.endswith("failed: not equal\nfailed: node-1 says: no")
