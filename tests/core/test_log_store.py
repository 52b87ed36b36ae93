"""A log with a store: what goes there, and what becomes of it when that is full or fails."""

from __future__ import annotations

from p2psgd.core.update_log import ENTRY_BYTES, SPILL_BYTES, UpdateLog
from tests.core.logs import ALL, ENTRY, NOTHING, PLENTY, A, B, filled, frame_of, held
from tests.core.stores import MemoryStore


def test_the_oldest_in_ram_go_to_the_store() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=3 * ENTRY, store=store, store_budget_bytes=4 * 40)
    filled(log, (A, 1, 2), (B, 1, 1))
    assert log.bytes_stored == 0
    filled(log, (B, 2, 2))
    assert set(store.frames.values()) == {frame_of(A, 1), frame_of(A, 2), frame_of(B, 1), frame_of(B, 2)}
    assert log.bytes_held == 4 * ENTRY_BYTES
    assert log.bytes_stored == 4 * 40
    assert held(log, A) == held(log, B) == [1, 2]
    log.trim(ALL, ALL, share=0)
    assert (store.frames, log.bytes_held, log.bytes_stored, len(log)) == ({}, 0, 0, 0)


def test_with_a_store_room_and_pressure_count_both_budgets() -> None:
    log = UpdateLog(budget_bytes=10 * ENTRY, store=MemoryStore(), store_budget_bytes=10 * 40)
    sequence = 0
    while log.room(40):
        sequence += 1
        log.append(A, sequence, frame_of(A, sequence))
        assert log.bytes_held <= 10 * ENTRY
    assert log.bytes_stored == 10 * 40
    assert log.pressure > 0.9
    assert held(log, A) == list(range(1, sequence + 1))


def test_a_full_store_leaves_the_frames_in_ram_and_the_budget_at_what_it_holds() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=10 * ENTRY, store=store, store_budget_bytes=1000 * 40)
    filled(log, (A, 1, 12))
    stored = log.bytes_stored
    assert stored > 0
    store.writable = False
    sequence = 12
    while log.room(40):
        sequence += 1
        log.append(A, sequence, frame_of(A, sequence))
    assert log.bytes_stored == stored
    assert 1 <= log.pressure < 1.2  # one frame over, by which it was found out
    assert log.bytes_held <= 11 * ENTRY
    assert held(log, A) == list(range(1, sequence + 1))
    writes = store.writes
    filled(log, (A, sequence + 1, sequence + 10))
    assert store.writes == writes  # no more attempts on the hot path


def test_a_store_that_has_room_again_is_found_out_by_trimming() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=10 * ENTRY, store=store, store_budget_bytes=1000 * 40)
    store.writable = False
    filled(log, (A, 1, 12))
    log.trim(NOTHING, NOTHING, share=0.7)
    assert not log.room(40)
    store.writable = True
    log.trim(NOTHING, NOTHING, share=0.7)
    assert log.room(40)
    assert log.bytes_held <= 10 * ENTRY
    assert held(log, A) == list(range(1, 13))


def test_trimming_at_a_full_store_stops_at_the_share_of_what_was_in_use() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=10 * ENTRY, store=store, store_budget_bytes=1000 * 40)
    filled(log, (A, 1, 20))
    store.writable = False
    filled(log, (A, 21, 30))
    limit = 10 * ENTRY + log.bytes_stored
    assert log.pressure > 1
    log.trim(ALL, ALL, share=0.7)
    assert 0.7 * limit - ENTRY < log.bytes_held + log.bytes_stored <= 0.7 * limit


def test_a_frame_that_the_store_cannot_read_is_not_given() -> None:
    store = MemoryStore()
    log = filled(UpdateLog(budget_bytes=3 * ENTRY, store=store, store_budget_bytes=PLENTY), (A, 1, 5))
    store.readable = False
    assert log.frame(A, 1) is None
    assert log.unreadable == 1
    assert (log.trimmed_to(A), log.last(A)) == (0, 5)


def test_a_log_that_slides_stays_within_its_budget_of_ram() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=20_000, store=store, store_budget_bytes=20_000)
    for sequence in range(1, 200):
        assert log.room(1000)
        log.append(A, sequence, frame_of(A, sequence, 1000))
        assert log.bytes_held <= 20_000
        if log.pressure > 0.75:
            log.trim(ALL, ALL, share=0.7)
    assert store.writes > 150


def test_a_spill_moves_no_more_than_a_batch() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=16 * SPILL_BYTES, store=store, store_budget_bytes=PLENTY)
    frame, sequence, most = bytes(1000), 0, 0
    while log.bytes_stored < 4 * SPILL_BYTES:
        sequence, before = sequence + 1, log.bytes_stored
        log.append(A, sequence, frame)
        most = max(most, log.bytes_stored - before)
    assert 0 < most <= SPILL_BYTES + 2000
