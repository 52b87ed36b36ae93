"""What entries cost: bytes of RAM and microseconds."""

from __future__ import annotations

import tracemalloc
from time import perf_counter

from p2psgd.core.frontier import Origin
from p2psgd.core.update_log import ENTRY_BYTES, SHED_MAX, UpdateLog
from tests.core.logs import ALL, NOTHING, PLENTY, A, B, everywhere
from tests.core.stores import MemoryStore


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

        def free(self, handle: int, length: int, *, held: bool) -> None:
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
