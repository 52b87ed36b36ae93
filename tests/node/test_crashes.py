"""How often, and how soon, a trainer that crashes is started again."""

from __future__ import annotations

import pytest

from p2psgd.base.errors import MEETING, STORE, ExitCode
from p2psgd.node.trainer_process import CRASHES_MAX, DELAY_MAX_S, FIRST_DELAY_S, STEADY_S, Crashes

HOUR_S = 3600.0
CRASH = "the trainer crashed (exit code 1): ValueError: no more"
KILLED = -9


def crash(
    crashes: Crashes, code: int = 1, reason: str = "ValueError: no more", *, trained_s: float | None
) -> float:
    """Count one more crash of the trainer; return the seconds until it is started again."""
    return crashes.count(code, reason, trained_s=trained_s)


@pytest.mark.parametrize("trained_s", [None, 0.0, STEADY_S - 1])
def test_the_second_exit_with_the_same_words_is_final(trained_s: float | None) -> None:
    crashes = Crashes()
    crash(crashes, trained_s=trained_s)
    assert crashes.give_up() is None
    crash(crashes, trained_s=trained_s)
    words = f"{CRASH}; twice alike, with less than 30 s of training in between"
    assert crashes.give_up() == (words, ExitCode.TRAINER)


def test_words_that_differ_in_their_numbers_are_the_same() -> None:
    crashes = Crashes()
    crash(crashes, reason="KeyError: <sample 17 at 0x7f01ab>", trained_s=None)
    crash(crashes, reason="KeyError: <sample 4 at 0x7fce>", trained_s=None)
    assert crashes.give_up()


def test_other_words_and_another_exit_code_are_another_crash() -> None:
    crashes = Crashes()
    crash(crashes, 1, "ValueError: no more", trained_s=None)
    crash(crashes, 3, "ValueError: no more", trained_s=None)
    crash(crashes, 1, "KeyError: 'x'", trained_s=None)
    crash(crashes, KILLED, "KeyError: 'x'", trained_s=None)
    crash(crashes, 1, "KeyError: 'x'", trained_s=None)
    assert crashes.give_up() is None


@pytest.mark.parametrize("cause", [STORE, MEETING])
def test_what_is_missing_is_waited_for_without_an_end(cause: str) -> None:
    crashes = Crashes()
    for _ in range(3 * CRASHES_MAX):
        assert crash(crashes, reason=f"SomeError: {cause} ...", trained_s=None) <= DELAY_MAX_S
        assert crashes.give_up() is None


def test_hours_of_training_make_up_for_all_crashes_before() -> None:
    crashes = Crashes()
    for _ in range(3 * CRASHES_MAX):
        assert crash(crashes, trained_s=HOUR_S) == FIRST_DELAY_S
        crash(crashes, trained_s=1.0)
        assert crashes.give_up() is None
    crash(crashes, trained_s=1.0)
    assert crashes.give_up()


def test_crashes_of_all_kinds_without_training_are_final_in_the_end() -> None:
    crashes = Crashes()
    for number in range(CRASHES_MAX):
        assert crashes.give_up() is None
        crash(crashes, reason="ValueError: " + number * "x", trained_s=1.0)
    assert crashes.give_up() == (f"{crashes.words}; {CRASHES_MAX} times in a row", ExitCode.TRAINER)


def test_one_that_is_killed_is_not_given_up_as_long_as_it_progresses() -> None:
    crashes = Crashes()
    delays = [crash(crashes, KILLED, trained_s=1.0) for _ in range(3 * CRASHES_MAX)]
    assert delays[-1] == DELAY_MAX_S
    assert crashes.give_up() is None
    for _ in range(CRASHES_MAX):
        crash(crashes, KILLED, trained_s=None)
    final = crashes.give_up()
    assert final is not None
    assert final[1] is ExitCode.TEMPORARY, "memory may be short: systemd may try it again"


def test_a_bug_of_the_built_in_trainer_is_one_of_ours() -> None:
    crashes = Crashes()
    crash(crashes, ExitCode.INTERNAL, trained_s=None)
    crash(crashes, ExitCode.INTERNAL, trained_s=None)
    final = crashes.give_up()
    assert final is not None
    assert final[1] is ExitCode.INTERNAL


def test_a_trainer_that_asks_for_another_try_gets_more_than_one() -> None:
    crashes = Crashes()
    for _ in range(CRASHES_MAX - 1):
        crash(crashes, ExitCode.TEMPORARY, "the daemon is gone", trained_s=None)
        assert crashes.give_up() is None
    crash(crashes, ExitCode.TEMPORARY, "the daemon is gone", trained_s=None)
    final = crashes.give_up()
    assert final is not None
    assert final[1] is ExitCode.TEMPORARY


def test_a_data_store_that_fails_is_never_a_reason_to_give_up() -> None:
    crashes = Crashes()
    for _ in range(3 * CRASHES_MAX):
        crash(crashes, 1, "p2psgd.base.errors.StoreError: the data store s3://b is away", trained_s=None)
    assert crashes.give_up() is None
