"""How often, and how soon, a trainer that crashes is started again."""

from __future__ import annotations

from p2psgd.node.trainer_process import CRASHES_MAX, DELAY_MAX_S, FIRST_DELAY_S, STEADY_S, Crashes

HOUR_S = 3600.0


def incarnations(
    crashes: Crashes, count: int, *, code: int = 3, lived_s: float, progressed: bool
) -> list[float]:
    """As many that end alike; how long each waits for the next."""
    return [crashes.count(code, "no more", lived_s=lived_s, progressed=progressed) for _ in range(count)]


def test_hours_of_progress_make_up_for_all_crashes_before() -> None:
    crashes = Crashes()
    for _ in range(3):
        incarnations(crashes, CRASHES_MAX - 2, lived_s=5, progressed=True)
        assert not crashes.give_up(came=True)
        assert incarnations(crashes, 1, lived_s=HOUR_S, progressed=True) == [FIRST_DELAY_S]
    incarnations(crashes, CRASHES_MAX - 1, lived_s=5, progressed=True)
    words = f"the trainer crashed (exit code 3): no more; {CRASHES_MAX} times in a row"
    assert crashes.give_up(came=True) == words


def test_a_trainer_that_never_comes_to_a_mini_batch_is_given_up_however_long_it_takes() -> None:
    crashes = Crashes()
    incarnations(crashes, CRASHES_MAX, lived_s=HOUR_S, progressed=False)
    assert crashes.give_up(came=True)


def test_one_that_is_killed_is_not_given_up_as_long_as_it_progresses() -> None:
    crashes = Crashes()
    delays = incarnations(crashes, 3 * CRASHES_MAX, code=-9, lived_s=STEADY_S - 1, progressed=True)
    assert delays[-1] == DELAY_MAX_S
    assert not crashes.give_up(came=True)
    incarnations(crashes, CRASHES_MAX, code=-9, lived_s=STEADY_S - 1, progressed=False)
    assert crashes.give_up(came=True)
