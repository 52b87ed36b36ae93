from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2psgd.core.frontier import Origin
from p2psgd.core.log import ENTRY_BYTES, SHED_MAX, SPILL_BYTES, UpdateLog
from tests.core.stores import MemoryStore

A, B, C = Origin(1, 7), Origin(2, 7), Origin(3, 7)
PLENTY = 1 << 30


def frame_of(origin: Origin, sequence: int, length: int = 40) -> bytes:
    return f"{origin.node} {sequence} ".encode().ljust(length, b".")


def filled(log: UpdateLog, *runs: tuple[Origin, int, int]) -> UpdateLog:
    """With updates first..last of each origin, in this order."""
    for origin, first, last in runs:
        for sequence in range(first, last + 1):
            log.append(origin, sequence, frame_of(origin, sequence))
    return log


def held(log: UpdateLog, origin: Origin) -> list[int]:
    """Sequences of the origin that the log can give, checked for what they are."""
    sequences = list(range(log.floor(origin) + 1, log.last(origin) + 1))
    assert log.frame(origin, log.floor(origin)) is None
    assert log.frame(origin, log.last(origin) + 1) is None
    assert [log.frame(origin, sequence) for sequence in sequences] == [
        frame_of(origin, sequence) for sequence in sequences
    ]
    return sequences


def everywhere(sequence: int) -> Callable[[Origin], int]:
    return lambda _: sequence


NOTHING = everywhere(0)
ALL = everywhere(PLENTY)
ENTRY = 40 + ENTRY_BYTES


def test_an_append_drops_nothing_even_over_the_budget() -> None:
    log = filled(UpdateLog(budget_bytes=3 * ENTRY), (A, 1, 2), (B, 1, 2), (A, 3, 3))
    assert held(log, A) == [1, 2, 3]
    assert held(log, B) == [1, 2]
    assert log.bytes_held == 5 * ENTRY
    assert log.pressure == pytest.approx(5 / 3)


def test_an_unknown_origin_has_nothing() -> None:
    log = UpdateLog(budget_bytes=1000)
    assert (log.floor(A), log.last(A), log.frame(A, 1), log.pressure) == (0, 0, None, 0)


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


def test_one_trim_takes_only_so_many_that_no_turn_of_the_loop_is_long() -> None:
    log = filled(UpdateLog(budget_bytes=(SHED_MAX + 100) * ENTRY), (A, 1, SHED_MAX + 100))
    log.trim(ALL, ALL, share=0.0)
    assert len(log) == 100
    assert log.lost_durability == 0  # what all have durably must go first, however long it takes
    log.trim(ALL, ALL, share=0.0)
    assert len(log) == 0


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
    in_ram = frame_of(A, 5) not in store.frames.values()
    store.readable = False
    assert log.frame(A, 1) is None
    assert log.unreadable == 1
    assert (log.floor(A), log.last(A)) == (0, 5)
    assert log.tail(NOTHING) == [(A, 5, frame_of(A, 5))] * in_ram


def test_the_tail_is_what_is_not_acknowledged() -> None:
    log = filled(UpdateLog(budget_bytes=PLENTY), (A, 1, 3), (B, 1, 2), (A, 4, 4), (C, 1, 1))
    tail = log.tail({A: 2, B: 2, C: 0}.__getitem__)
    assert tail == [(A, 3, frame_of(A, 3)), (A, 4, frame_of(A, 4)), (C, 1, frame_of(C, 1))]
    log.trim(ALL, ALL, share=3 * ENTRY / PLENTY)
    assert sorted(entry[:2] for entry in log.tail(NOTHING)) == [(A, 4), (B, 2), (C, 1)]


def test_pinned_bytes_are_those_beyond_what_one_has_applied() -> None:
    log = filled(UpdateLog(budget_bytes=PLENTY), (A, 1, 10), (B, 1, 4))
    assert log.pinned_bytes(ALL) == 0
    assert log.pinned_bytes(NOTHING) == log.bytes_held
    assert log.pinned_bytes({A: 7, B: 4}.__getitem__) == 3 * ENTRY
    log.trim(everywhere(5), ALL, share=0)
    assert log.pinned_bytes(everywhere(3)) == log.bytes_held == 5 * ENTRY


# -- taking a snapshot: (own floor and last), frontier, first of the tail -> sequences held afterwards


@pytest.mark.parametrize(
    ("floor", "last", "frontier", "first", "expected"),
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
        (9, 12, 8, 6, [6, 7, 8]),  # a hole at 9, which the owner must not let happen
        (0, 3, 0, None, [1, 2, 3]),  # an origin that the snapshot has nothing of
    ],
)
@pytest.mark.parametrize("budget_entries", [1000, 4])
def test_adopting_takes_the_tail_and_keeps_what_goes_on_from_it(
    *, floor: int, last: int, frontier: int, first: int | None, expected: list[int], budget_entries: int
) -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=budget_entries * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (B, 1, 3), (A, 1, last))
    log.trim({A: floor, B: 0}.__getitem__, ALL, share=0)
    tail = [(A, sequence, frame_of(A, sequence)) for sequence in range(first or frontier + 1, frontier + 1)]
    log.adopt({A: frontier, B: 3}, [*tail, (B, 3, frame_of(B, 3))])
    assert held(log, A) == expected
    assert log.floor(A) == (expected[0] - 1 if expected else frontier)
    assert held(log, B) == [3]
    check_accounts(log, store)
    following = log.last(A) + 1
    log.append(A, following, frame_of(A, following))
    log.trim(ALL, ALL, share=0)
    check_accounts(log, store)
    assert len(log) == 0


def test_a_tail_before_entries_in_the_store_goes_there_too() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=10_000, store=store, store_budget_bytes=PLENTY)
    log.adopt({A: 8}, [])
    for sequence in range(9, 21):
        log.append(A, sequence, frame_of(A, sequence, 1000))
    log.adopt({A: 8}, [(A, sequence, frame_of(A, sequence, 1000)) for sequence in range(6, 9)])
    assert log.bytes_held <= 10_000
    sequences = range(6, 21)
    assert [log.frame(A, sequence) for sequence in sequences] == [frame_of(A, n, 1000) for n in sequences]
    stored = [frame_of(A, sequence, 1000) in store.frames.values() for sequence in sequences]
    assert stored == sorted(stored, reverse=True)  # the oldest, the tail among them
    assert 3 < sum(stored) < 12


def test_a_tail_has_no_hole_where_the_store_cannot_be_read() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=6 * ENTRY, store=store, store_budget_bytes=PLENTY)
    filled(log, (A, 1, 7))
    log.trim(everywhere(2), ALL, share=0)
    log.budget_bytes = PLENTY
    log.adopt({A: 2}, [(A, 2, frame_of(A, 2))])  # in RAM, before others in the store
    store.readable = False
    readable = [sequence for sequence in range(2, 8) if log.frame(A, sequence)]
    assert readable[0] == 2
    assert 3 not in readable
    assert [sequence for _, sequence, _ in log.tail(NOTHING)] == readable[1:]


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


def check_accounts(log: UpdateLog, store: MemoryStore) -> None:
    total = sum(
        len(log.frame(origin, sequence) or b"")
        for origin in (A, B, C)
        for sequence in range(log.floor(origin) + 1, log.last(origin) + 1)
    )
    assert log.bytes_stored == sum(map(len, store.frames.values()))
    assert log.bytes_held + log.bytes_stored == total + len(log) * ENTRY_BYTES
    assert log.bytes_stored <= log.store_budget_bytes
    assert 0 <= log.pinned_bytes(NOTHING) - (total + len(log) * ENTRY_BYTES) + 3 <= 3  # rounded down


class LogMachine(RuleBasedStateMachine):
    """The log beside a plain model of it: every frame of every origin, a floor and an order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.log = UpdateLog(budget_bytes=6 * ENTRY, store=self.store, store_budget_bytes=400)
        self.frames: dict[Origin, list[bytes]] = {A: [], B: [], C: []}
        self.floors = {A: 0, B: 0, C: 0}
        self.order: list[tuple[Origin, int]] = []

    @rule(origin=st.sampled_from([A, B, C]), length=st.integers(10, 200), count=st.integers(1, 5))
    def append(self, origin: Origin, length: int, count: int) -> None:
        for _ in range(count):
            frames = self.frames[origin]
            frames.append(frame_of(origin, len(frames) + 1, length))
            roomy = self.log.room(length)
            self.log.append(origin, len(frames), frames[-1])
            self.order.append((origin, len(frames)))
            if roomy:  # one frame over shows that the store takes no more, and then there is no room
                assert self.log.bytes_held <= self.log.budget_bytes + length + ENTRY_BYTES

    @rule(stable=st.tuples(*[st.integers(0, 40)] * 3), durable=st.tuples(*[st.integers(0, 40)] * 3))
    def trim(self, stable: tuple[int, ...], durable: tuple[int, ...]) -> None:
        stables, durables = (dict(zip((A, B, C), row, strict=True)) for row in (stable, durable))
        lost, target = 0, 0.5 * self.log.capacity
        used = self.log.bytes_held + self.log.bytes_stored
        for limits in ({o: min(stables[o], durables[o]) for o in stables}, stables):
            for origin, sequence in list(self.order):
                if used > target and self.floors[origin] < sequence <= limits[origin]:
                    self.floors[origin] = sequence
                    self.order.remove((origin, sequence))
                    used -= len(self.frames[origin][sequence - 1]) + ENTRY_BYTES
                    lost += limits is stables
        before = self.log.lost_durability
        self.log.trim(stables.__getitem__, durables.__getitem__, share=0.5)
        assert self.log.lost_durability - before == lost

    @rule()
    def toggle_the_disk(self) -> None:
        self.store.writable = not self.store.writable

    @precondition(lambda self: self.order)
    @rule()
    def adopt_own_tail(self) -> None:
        """What the log itself would give to a joiner changes nothing here."""
        self.log.adopt({origin: self.log.last(origin) for origin in (A, B, C)}, self.log.tail(NOTHING))
        self.order.sort()  # all of one origin come as old as its oldest, or as old as can be

    @invariant()
    def equals_its_model(self) -> None:
        assert len(self.log) == len(self.order)
        for origin, frames in self.frames.items():
            assert self.log.floor(origin) == self.floors[origin]
            assert self.log.last(origin) == len(frames)
            for sequence in range(self.floors[origin] + 1, len(frames) + 1):
                assert self.log.frame(origin, sequence) == frames[sequence - 1]
        check_accounts(self.log, self.store)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


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
    floor, last = log.floor(A), log.last(A)
    first = max(1, frontier - length + 1)
    log.adopt({A: frontier}, [(A, n, frame_of(A, n)) for n in range(first, frontier + 1)])
    sequences = held(log, A)
    assert sequences == list(range(first, (last if floor <= frontier < last else frontier) + 1))
    check_accounts(log, store)


# -- what it costs


def test_an_entry_costs_no_more_memory_than_it_is_counted_with() -> None:
    log = UpdateLog(budget_bytes=1 << 30)
    frames = iter([bytes(600) for _ in range(20_000)])  # their own bytes are allocated before
    objects = 20_000 * (bytes(600).__sizeof__() - 600)
    tracemalloc.start()
    try:
        for origin in (A, B):
            for sequence in range(1, 10_001):
                log.append(origin, sequence, next(frames))
        ram = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (ram + objects) / 20_000 <= ENTRY_BYTES


def test_an_entry_in_the_store_costs_no_more_either() -> None:
    class Nowhere(MemoryStore):
        def write(self, frame: bytes) -> int:
            self.writes += 1
            return self.writes << 20

        def free(self, handle: int, length: int) -> None:
            pass

    log = UpdateLog(budget_bytes=20_000 * ENTRY_BYTES, store=Nowhere(), store_budget_bytes=PLENTY)
    frame = bytes(600)
    tracemalloc.start()
    try:
        for sequence in range(1, 20_001):
            log.append(A, sequence, frame)
        log.trim(everywhere(9_000), ALL, share=0)
        ram = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert log.bytes_stored == 11_000 * 600
    assert ram / 11_000 <= ENTRY_BYTES


def test_trimming_and_appending_take_microseconds_each() -> None:
    origins = [Origin(node, 1) for node in range(100)]
    log, frame, count = UpdateLog(budget_bytes=1 << 30), bytes(600), SHED_MAX
    start = perf_counter()
    for number in range(count):
        log.append(origins[number % 100], number // 100 + 1, frame)
    appended = perf_counter()
    log.trim(ALL, NOTHING, share=0)
    trimmed = perf_counter()
    assert log.lost_durability == count
    assert (appended - start) / count < 20e-6
    assert (trimmed - appended) / count < 40e-6


def test_a_spill_moves_no_more_than_a_batch() -> None:
    store = MemoryStore()
    log = UpdateLog(budget_bytes=16 * SPILL_BYTES, store=store, store_budget_bytes=PLENTY)
    frame, sequence, most = bytes(1000), 0, 0
    while log.bytes_stored < 4 * SPILL_BYTES:
        sequence, before = sequence + 1, log.bytes_stored
        log.append(A, sequence, frame)
        most = max(most, log.bytes_stored - before)
    assert 0 < most <= SPILL_BYTES + 2000
