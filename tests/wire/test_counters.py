"""Counters that two processes share."""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
import pytest

from p2psgd.wire import codec
from tests import DEADLINE_S


def test_a_stored_counter_is_loaded_and_its_neighbours_are_untouched() -> None:
    counters = np.zeros(24, np.uint64)
    codec.store_counter(counters, 8, 2**64 - 1)
    codec.store_counter(counters, 16, 5)
    assert codec.load_counter(counters, 8) == 2**64 - 1
    assert np.flatnonzero(counters).tolist() == [8, 16]


def test_a_counter_can_be_loaded_from_memory_that_is_mapped_read_only() -> None:
    descriptor = os.memfd_create("counters")
    try:
        os.truncate(descriptor, mmap.PAGESIZE)
        ours = np.frombuffer(mmap.mmap(descriptor, mmap.PAGESIZE), np.uint64)
        theirs = np.frombuffer(mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ), np.uint64)
    finally:
        os.close(descriptor)
    codec.store_counter(ours, 3, 42)
    assert codec.load_counter(theirs, 3) == 42
    with pytest.raises(ValueError, match="counters must be writable"):
        codec.store_counter(theirs, 3, 43)


def test_what_was_written_before_the_store_is_seen_after_the_load() -> None:
    counters, message = np.zeros(8, np.uint64), np.zeros(1, np.int64)
    seen: list[int] = []

    def read() -> None:
        while codec.load_counter(counters, 0) == 0:
            pass
        seen.append(int(message[0]))

    reader = threading.Thread(target=read)
    reader.start()
    message[0] = 7
    codec.store_counter(counters, 0, 1)
    reader.join(timeout=DEADLINE_S)
    assert seen == [7]


def test_places_and_values_out_of_range_are_refused() -> None:
    counters = np.zeros(8, np.uint64)
    with pytest.raises(IndexError, match="counter 8 of 8"):
        codec.load_counter(counters, 8)
    with pytest.raises(IndexError, match="counter 9 of 8"):
        codec.store_counter(counters, 9, 0)
    for value in (-1, 2**64):
        with pytest.raises(TypeError):
            codec.store_counter(counters, 0, value)
    with pytest.raises(TypeError, match="counters must be of uint64"):
        codec.load_counter(counters.view(np.int64), 0)
    with pytest.raises(ValueError, match="aligned"):
        codec.load_counter(np.zeros(17, np.uint8)[1:].view(np.uint64), 0)
