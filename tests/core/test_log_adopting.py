"""A log that becomes that of a replica taken from a snapshot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.core.update_log import TIDY_MAX, OriginLog, UpdateLog
from tests.core.logs import (
    ALL,
    ENTRY,
    PLENTY,
    A,
    B,
    adopt,
    check_accounts,
    everywhere,
    filled,
    frame_of,
    held,
)
from tests.core.stores import MemoryStore

# -- taking a snapshot: (own floor and last), frontier, first of the tail -> sequences held afterwards


@pytest.mark.parametrize(
    ("trimmed_to", "last", "frontier", "first", "expected"),
    [
        (0, 0, 8, None, []),  # nothing held, nothing came
        (0, 0, 8, 5, [5, 6, 7, 8]),
        (0, 4, 8, 5, [5, 6, 7, 8]),  # what is before the tail goes
        (6, 7, 8, 5, [5, 6, 7, 8]),
        (2, 8, 8, 5, [5, 6, 7, 8]),
        (8, 8, 8, 3, [3, 4, 5, 6, 7, 8]),  # all had left here
        (6, 10, 8, 5, [5, 6, 7, 8, 9, 10]),  # goes on beyond
        (8, 10, 8, None, [9, 10]),
        (3, 10, 8, None, [9, 10]),
        (3, 7, 8, None, []),
        (9, 12, 8, 6, [10, 11, 12]),  # trimmed while 9 to 12 were applied again: all members have up to 9
        (0, 3, 0, None, [1, 2, 3]),  # an origin that the snapshot has nothing of
    ],
)
@pytest.mark.parametrize("budget_entries", [1000, 4])
def test_adopting_takes_the_tail_and_keeps_what_goes_on_from_it(
    *, trimmed_to: int, last: int, frontier: int, first: int | None, expected: list[int], budget_entries: int
) -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=budget_entries * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (B, 1, 3), (A, 1, last))
    log.trim({A: trimmed_to, B: 0}.__getitem__, ALL, share=0)
    tail = [(A, sequence) for sequence in range(first or frontier + 1, frontier + 1)]
    adopt(log, {A: frontier, B: 3}, [*tail, (B, 3)])
    assert held(log, A) == expected
    assert log.trimmed_to(A) == (expected[0] - 1 if expected else frontier)
    assert held(log, B) == [3]
    check_accounts(log, store)
    following = log.last(A) + 1
    log.append(A, following, frame_of(A, following))
    log.trim(ALL, ALL, share=0)
    check_accounts(log, store)
    assert len(log) == 0


@given(
    own=st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted),
    frontier=st.integers(0, 12),
    length=st.integers(0, 12),
    budget_entries=st.integers(1, 20),
)
def test_adopting_leaves_no_hole_wherever_the_two_logs_meet(
    own: list[int], frontier: int, length: int, budget_entries: int
) -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=budget_entries * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (A, 1, own[1]))
    log.trim(everywhere(own[0]), ALL, share=0)
    trimmed_to, last = log.trimmed_to(A), log.last(A)
    first = max(1, frontier - length + 1)
    adopt(log, {A: frontier}, [(A, n) for n in range(first, frontier + 1)])
    expected = range(first, (last if trimmed_to <= frontier < last else frontier) + 1)
    assert held(log, A) == list(range(trimmed_to + 1, last + 1) if trimmed_to > frontier else expected)
    check_accounts(log, store)


def test_a_tail_that_ram_has_no_room_for_goes_to_the_store_as_it_comes() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=10_000, store=store, store_budget_bytes=PLENTY)
    log.start(A, 8)
    for sequence in range(9, 21):
        log.append(A, sequence, frame_of(A, sequence, 1000))
    lane = OriginLog(8)
    for sequence in range(8, 0, -1):
        log.receive(lane, frame_of(A, sequence, 1000))
        assert log.bytes_held <= 10_000
    log.adopt({A: lane}, {A: 12_000})
    assert [log.frame(A, n) for n in range(1, 21)] == [frame_of(A, n, 1000) for n in range(1, 21)]
    while log.untidy:
        log.tidy()
    check_accounts(log, store)
    log.trim(ALL, ALL, share=0)
    check_accounts(log, store)


def test_what_neither_has_room_for_stays_in_ram_and_there_is_no_room_then() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=10_000, store=store, store_budget_bytes=5_000)
    lane = OriginLog(30)
    for sequence in range(30, 0, -1):
        log.receive(lane, frame_of(A, sequence, 1000))
    log.adopt({A: lane}, {})
    assert [log.frame(A, n) for n in range(1, 31)] == [frame_of(A, n, 1000) for n in range(1, 31)]
    assert log.bytes_stored == 5_000
    assert not log.room(0)
    check_accounts(log, store)


def test_what_is_given_up_goes_bit_by_bit_and_counts_until_it_is_gone() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=PLENTY, store=store, store_budget_bytes=PLENTY)
    count = TIDY_MAX + 10
    filled(log, (A, 1, count))
    received = OriginLog(5)
    log.receive(received, frame_of(B, 5))
    log.discard({B: received})
    log.adopt({A: OriginLog(count)}, {})
    assert (log.untidy, len(log), log.trimmed_to(A)) == (True, 0, count)
    assert log.bytes_held == (count + 1) * ENTRY
    log.tidy()
    assert log.bytes_held == 11 * ENTRY
    log.tidy()
    assert (log.untidy, log.bytes_held) == (False, 0)
    log.append(A, count + 1, frame_of(A, count + 1))
    check_accounts(log, store)
