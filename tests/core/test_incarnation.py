"""The numbers of a node's lives: they only grow, differ between copies, and never wrap around."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from p2psgd.core.frontier import CHANCE_BITS, INCARNATION_MAX, TOLD_MAX, next_incarnation

CHANCE = st.integers(0, 2**CHANCE_BITS - 1)
LAST_CLOCK_MS = 2**63 // 10**6  # of a clock that counts nanoseconds in 64 bits


@given(st.integers(0, 2**64), st.integers(0, LAST_CLOCK_MS), CHANCE)
def test_a_life_has_a_higher_number_than_all_that_are_known_or_none(
    known: int, clock_ms: int, chance: int
) -> None:
    found = next_incarnation(known, clock_ms=clock_ms, chance=chance)
    if found is None:
        assert known + 1 + chance > INCARNATION_MAX
    else:
        assert known < found <= INCARNATION_MAX


def test_a_clock_that_is_right_gives_the_number() -> None:
    now_ms = int(datetime(2026, 11, 23, tzinfo=UTC).timestamp() * 1000)
    found = next_incarnation(now_ms - 1 << 16, clock_ms=now_ms, chance=2**20 + 7)
    assert found == now_ms << 16 | 7


def test_two_copies_that_begin_at_once_behind_the_same_number_differ() -> None:
    known = 2**59
    assert next_incarnation(known, clock_ms=5, chance=3) != next_incarnation(known, clock_ms=5, chance=4)


def test_no_clock_shows_what_is_not_believed() -> None:
    assert LAST_CLOCK_MS << 16 < TOLD_MAX


def test_a_node_that_was_pushed_as_far_as_anybody_can_has_room_for_many_lives() -> None:
    known = TOLD_MAX
    for _ in range(1000):
        found = next_incarnation(known, clock_ms=0, chance=2**CHANCE_BITS - 1)
        assert found is not None
        known = found
    assert INCARNATION_MAX - TOLD_MAX >= 2**28 * 2**CHANCE_BITS


def test_above_the_last_number_there_is_none() -> None:
    assert next_incarnation(INCARNATION_MAX - 1, clock_ms=0, chance=0) == INCARNATION_MAX
    assert next_incarnation(INCARNATION_MAX, clock_ms=0, chance=0) is None
    assert next_incarnation(2**64 - 1, clock_ms=0, chance=0) is None
