from __future__ import annotations

import numpy as np

from p2psgd.ipc.ring_buffer import COUNTERS_WORDS, Counter, Counters


def test_each_counter_has_a_cache_line_and_64_bits() -> None:
    words = np.zeros(COUNTERS_WORDS, dtype=np.uint64)
    counters = Counters(words)
    for number, counter in enumerate(Counter):
        counters.store(counter, 2**64 - 1 - number)
    assert [counters.load(counter) for counter in Counter] == [2**64 - 1 - n for n in range(len(Counter))]
    assert list(np.flatnonzero(words)) == [8 * n for n in range(len(Counter))]


def test_the_positions_of_the_layout_stay() -> None:
    assert {counter.name: int(counter) for counter in Counter} == {
        "OUTBOX_HEAD": 0,
        "INBOX_TAIL": 8,
        "STEPS": 16,
        "INBOX_HEAD": 24,
        "OUTBOX_TAIL": 32,
        "RELOAD_WANTED": 40,
        "STOPPING": 48,
        "GENERATION": 56,
        "STATE_WANTED": 64,
        "ROUNDS_OPENED": 72,
        "CONTRIBUTORS": 80,
        "SUMS": 88,
        "ADDING_US": 96,
        "SENDING_US": 104,
        "ROUND": 112,
        "RESIDUAL_COPY": 120,
        "LINKS_BUSY": 128,
    }
