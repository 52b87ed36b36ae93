"""References to what a checkpoint keeps of the log, read while that goes on."""

from __future__ import annotations

import pytest

from p2psgd.core.update_log import Tail, UnreadableTailError, UpdateLog, entry_of
from tests.core.logs import ALL, ENTRY, NOTHING, PLENTY, A, B, C, adopt, filled, frame_of
from tests.core.stores import MemoryStore


def test_the_tail_is_what_is_not_acknowledged() -> None:
    log = filled(UpdateLog(budget_bytes=PLENTY), (A, 1, 3), (B, 1, 2), (A, 4, 4), (C, 1, 1))
    tail = log.tail({A: 2, B: 2, C: 0}.__getitem__)
    assert list(tail) == [frame_of(A, 3), frame_of(A, 4), frame_of(C, 1)]
    assert (len(tail), tail.frame_bytes) == (3, 120)
    log.trim(ALL, ALL, share=3 * ENTRY / PLENTY)
    log.release()
    assert sorted(log.tail(NOTHING)) == [frame_of(A, 4), frame_of(B, 2), frame_of(C, 1)]


def test_a_tail_is_read_whole_though_its_frames_leave_the_log_or_go_to_the_store() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=10 * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (A, 1, 30))
    tail = log.tail(NOTHING)
    assert 0 < log.bytes_stored < tail.frame_bytes == 30 * 40
    frames = iter(tail)
    assert next(frames) == frame_of(A, 1)
    filled(log, (A, 31, 60))
    log.trim(ALL, ALL, share=0)
    assert (len(log), log.bytes_stored) == (0, 0)
    assert list(frames) == [frame_of(A, sequence) for sequence in range(2, 31)]
    assert store.frames
    log.release()
    assert store.frames == {}


def test_what_a_tail_does_not_have_leaves_the_store_at_once() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=35 * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (A, 1, 20), (B, 1, 20))
    tail = log.tail({A: 10, B: 20}.__getitem__)
    filled(log, (A, 21, 40), (C, 1, 20))
    log.trim(ALL, ALL, share=0)
    assert sorted(store.frames.values()) == sorted(frame_of(A, number) for number in range(11, 21))
    assert list(tail) == [frame_of(A, number) for number in range(11, 21)]
    log.release()
    assert store.frames == {}


def test_a_tail_is_read_whole_though_a_snapshot_replaces_the_log() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=35 * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (A, 1, 40))
    tail = log.tail({A: 10}.__getitem__)
    assert log.bytes_stored > 10 * 40
    adopt(log, {A: 50}, [(A, 50)])
    while log.untidy:
        log.tidy()
    assert list(tail) == [frame_of(A, number) for number in range(11, 41)]
    log.release()
    assert len(store.frames) <= 1


def test_of_a_tail_whose_store_fails_what_comes_after_it_is_left() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=30 * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (A, 1, 31), (B, 1, 2))
    tail = log.tail(NOTHING)
    store.readable = False
    with pytest.raises(UnreadableTailError):
        list(tail)
    stored = len(store.frames)
    assert 0 < stored < 31
    assert list(tail.readable(any_frame)) == [
        *(frame_of(A, sequence) for sequence in range(stored + 1, 32)),
        *(frame_of(B, sequence) for sequence in (1, 2)),
    ]


def test_a_hole_in_ram_is_not_closed_by_what_came_before_it() -> None:
    store = MemoryStore()
    store.readable = False
    tail = Tail([[b"before", 1 << 32 | 5, b"after"], [1 << 32 | 5], []], store)
    assert list(tail.readable(any_frame)) == [b"after"]
    assert tail.frame_bytes == 6 + 5 + 5 + 5


def test_a_frame_that_has_changed_costs_what_came_before_it_of_its_origin() -> None:
    store = MemoryStore()
    stored = entry_of(store.write(b"stored"), 6)
    tail = Tail([[stored, b"bad", b"after"], [stored, b"b"], [b"bad"]], store)
    assert list(tail.readable(lambda frame: frame != b"bad")) == [b"after", b"stored", b"b"]


def any_frame(frame: bytes) -> bool:
    return True
