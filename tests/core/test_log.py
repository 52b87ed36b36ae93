"""What a log holds, and what leaves it."""

from __future__ import annotations

import pytest

from p2psgd.core.update_log import SHED_MAX, UpdateLog
from tests.core.logs import ALL, ENTRY, NOTHING, PLENTY, A, B, everywhere, filled, frame_of, held


def test_an_append_drops_nothing_even_over_the_budget() -> None:
    log = filled(UpdateLog(budget_bytes=3 * ENTRY), (A, 1, 2), (B, 1, 2), (A, 3, 3))
    assert held(log, A) == [1, 2, 3]
    assert held(log, B) == [1, 2]
    assert log.bytes_held == 5 * ENTRY
    assert log.pressure == pytest.approx(5 / 3)


def test_an_unknown_origin_has_nothing() -> None:
    log = UpdateLog(budget_bytes=1000)
    assert (log.trimmed_to(A), log.last(A), log.frame(A, 1), log.pressure) == (0, 0, None, 0)


def test_a_hole_in_the_sequence_is_our_own_fault() -> None:
    log = filled(UpdateLog(budget_bytes=1000), (A, 1, 2))
    for sequence in (0, 2, 4):
        with pytest.raises(AssertionError):
            log.append(A, sequence, b"frame")


def test_room_ends_exactly_at_the_budget() -> None:
    log = filled(UpdateLog(budget_bytes=3 * ENTRY), (A, 1, 2))
    assert log.room(40)
    assert not log.room(41)
    log.append(A, 3, frame_of(A, 3))
    assert not log.room(0)


def test_trimming_takes_the_oldest_of_all_origins_down_to_the_share() -> None:
    log = filled(UpdateLog(budget_bytes=10 * ENTRY), (A, 1, 3), (B, 1, 3), (A, 4, 7))
    log.trim(ALL, ALL, share=0.6)
    assert (held(log, A), held(log, B)) == ([4, 5, 6, 7], [2, 3])
    assert log.pressure == pytest.approx(0.6)
    log.trim(ALL, ALL, share=0.6)
    assert len(log) == 6
    assert log.lost_durability == 0


def test_what_somebody_lacks_stays_however_full_the_log_is() -> None:
    log = filled(UpdateLog(budget_bytes=2 * ENTRY), (A, 1, 5), (B, 1, 5))
    log.trim({A: 0, B: 2}.__getitem__, ALL, share=0.5)
    assert (held(log, A), held(log, B)) == ([1, 2, 3, 4, 5], [3, 4, 5])


def test_what_is_durable_everywhere_leaves_before_what_is_older() -> None:
    log = filled(UpdateLog(budget_bytes=10 * ENTRY), (A, 1, 5), (B, 1, 5))
    log.trim(ALL, {A: 0, B: 3}.__getitem__, share=0.7)
    assert (held(log, A), held(log, B)) == ([1, 2, 3, 4, 5], [4, 5])
    assert log.lost_durability == 0
    log.trim(ALL, {A: 0, B: 3}.__getitem__, share=0.5)
    assert (held(log, A), held(log, B)) == ([3, 4, 5], [4, 5])
    assert log.lost_durability == 2


def test_durable_counts_only_as_far_as_stable() -> None:
    log = filled(UpdateLog(budget_bytes=4 * ENTRY), (A, 1, 4))
    log.trim(everywhere(2), everywhere(4), share=0)
    assert held(log, A) == [3, 4]
    assert log.lost_durability == 0


def test_one_trim_takes_only_so_many_that_no_turn_of_the_loop_is_long() -> None:
    log = filled(UpdateLog(budget_bytes=(SHED_MAX + 100) * ENTRY), (A, 1, SHED_MAX + 100))
    log.trim(ALL, ALL, share=0.0)
    assert len(log) == 100
    assert log.lost_durability == 0  # what all have durably must go first, however long it takes
    log.trim(ALL, ALL, share=0.0)
    assert len(log) == 0


def test_pinned_bytes_are_those_beyond_what_one_has_applied() -> None:
    log = filled(UpdateLog(budget_bytes=PLENTY), (A, 1, 10), (B, 1, 4))
    assert log.pinned_bytes(ALL) == 0
    assert log.pinned_bytes(NOTHING) == log.bytes_held
    assert log.pinned_bytes({A: 7, B: 4}.__getitem__) == 3 * ENTRY
    log.trim(everywhere(5), ALL, share=0)
    assert log.pinned_bytes(everywhere(3)) == log.bytes_held == 5 * ENTRY
