from __future__ import annotations

import signal

import pytest

from p2psgd.client.verify import DIFFERS
from tests.chaos.checks import fault_of_ending, faults_in_log, forgotten, growth
from tests.chaos.nodes import Memory

MIB = 1024  # KiB


def line(level: str, words: str) -> str:
    return f"2026-01-02 03:04:05Z {'' if level == 'INFO' else level + ' '}{words}"


def memories(*own_kib: int, every_s: float = 30.0, log_bytes: int = 0, descriptors: int = 30) -> list[Memory]:
    """Quiet points of one life; the log grows by `log_bytes` from each to the next."""
    return [
        Memory(number * every_s, 2 * own, own, descriptors, number * log_bytes)
        for number, own in enumerate(own_kib)
    ]


@pytest.mark.parametrize(
    "found",
    [
        line("ERROR", "update 7 of node-1 does not fit its digest"),
        line("ERROR", "Task exception was never retrieved"),
        line("CRITICAL", "anything"),
        line("INFO", "Traceback (most recent call last):"),
        "p2psgd: internal error, please report it with the log: KeyError(1)",
        line("WARNING", "the trainer crashed (exit code 1): ValueError: no; started again in 1 s"),
    ],
)
def test_errors_bugs_and_crashes_in_a_log_are_found(found: str) -> None:
    assert faults_in_log([line("INFO", "well"), found], {"disk full", "kill -9 of a trainer"}) == [found]


def test_what_is_no_error_and_what_we_did_ourselves_is_not_found() -> None:
    killed = "the trainer crashed (killed by signal 9); started again in 1 s"
    lines = [line("INFO", "lost the link to node-1: an ERROR of the peer"), line("WARNING", killed)]
    assert faults_in_log([lines[1], line("INFO", "run 0123: 7 weights")], ()) == []


def test_an_alarm_is_explained_only_by_its_fault() -> None:
    alarm = line("ERROR", "the checkpoint cannot be written: No space left on device")
    assert faults_in_log([alarm], {"disk full", "link cut"}) == []
    assert faults_in_log([alarm], {"link cut"}) == [alarm]
    wrong = line("INFO", f"p2psgd: {DIFFERS}")
    assert faults_in_log([wrong], {"bit flipped in memory"}) == []
    assert faults_in_log([wrong], {"link cut"}) == [wrong]
    bug = line("ERROR", "internal error, please report it: OSError('No space left on device')")
    assert faults_in_log([bug], {"disk full"}) == [bug]


TERM, KILL = signal.SIGTERM, signal.SIGKILL


def ending(
    code: int, *asked: signal.Signals, words: str = "", kinds: tuple[str, ...] = (), answered: bool = True
) -> str | None:
    return fault_of_ending(code, asked, words, kinds, answered=answered)


def test_an_ending_must_be_what_was_asked_for() -> None:
    assert ending(-9, KILL) is None
    assert ending(0, TERM) is None
    assert ending(-9, TERM, KILL) is None
    assert ending(0, TERM, KILL) is None
    for code, asked in (
        (-9, ()),
        (-9, (TERM,)),
        (-11, (KILL,)),
        (1, (TERM,)),
        (0, ()),
        (0, (KILL,)),
        (70, ()),
    ):
        assert f"exit code {code}" in (ending(code, *asked, kinds=("disk full",)) or "")


def test_only_a_daemon_that_has_just_been_started_may_die_of_sigterm() -> None:
    assert ending(-15, TERM, answered=False) is None
    assert ending(-15, TERM) == "ended with exit code -15, SIGTERM was sent: "


def test_an_ending_with_an_error_needs_a_fault_that_explains_its_last_words() -> None:
    words = "p2psgd: cannot write /state/node.json: no space left on device"
    assert ending(75, words=words, kinds=("disk full",)) is None
    assert ending(75, words=words, kinds=("link cut",)) is not None
    assert ending(77, words=words, kinds=("disk full",)) is not None
    assert ending(1, words=words, kinds=("disk full",)) is not None
    words = "p2psgd: stopped, but no peer has acknowledged this node's last 3 updates: they are lost"
    assert ending(75, TERM, words=words, kinds=("clean stop and start",)) is None
    assert ending(75, TERM, words="stopped at once", kinds=("clean stop and start",)) is not None


def test_an_ending_that_the_core_decided_needs_its_event() -> None:
    words = "p2psgd: 3 updates that only this node had applied are lost: no log holds them any more"
    assert fault_of_ending(75, (), words, (), answered=True, noted={"abandoned"}) is None
    assert fault_of_ending(75, (), words, (), answered=True, noted={"quarantine"}) is not None
    assert fault_of_ending(70, (), words, (), answered=True, noted={"abandoned"}) is not None


def test_a_life_may_grow_a_little_and_with_its_log() -> None:
    assert growth([]) == growth(memories(60 * MIB)) == []
    assert growth(memories(60 * MIB, 71 * MIB)) == []
    assert growth(memories(60 * MIB, 100 * MIB, log_bytes=32 * MIB * 1024)) == []
    assert len(growth(memories(60 * MIB, 73 * MIB))) == 1


def test_a_steady_growth_is_found_before_it_is_large() -> None:
    assert growth(memories(60 * MIB, 61 * MIB, 60 * MIB, 62 * MIB, 61 * MIB, 62 * MIB)) == []
    assert growth(memories(*(mib * MIB for mib in (60, 62, 64, 64, 64, 64)))) == []  # a log fills first
    found = growth(memories(*(mib * MIB for mib in (60, 62, 64, 66, 68, 70))))
    assert found == [f"grows by {4 * MIB} KiB a minute beyond its log"]


def test_descriptors_that_stay_open_are_found() -> None:
    few, many = memories(MIB, MIB, descriptors=30), memories(MIB, MIB, descriptors=39)
    assert growth([*few, many[1]]) == ["has 39 descriptors open, at first 30"]
    assert growth([few[0], *many]) == []  # those of the trainer, which came after the first


def test_what_all_had_applied_must_not_be_gone() -> None:
    a, b = ("a", 1), ("b", 2)
    assert forgotten({a: 3, b: 4}, {a: 3, b: 5, ("c", 3): 1}) == []
    assert forgotten({a: 3, b: 4}, {b: 1}) == [
        "all had applied update 3 of a/1, now all end at 0",
        "all had applied update 4 of b/2, now all end at 1",
    ]
