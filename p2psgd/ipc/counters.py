"""The page of counters that daemon and trainer publish to each other.

Each counter has one writer and a cache line of its own, so the two sides never write one line. The daemon
keeps its own counters privately and never reads back what it published. The trainer reads its OUTBOX_HEAD and
MINI_BATCH back, because after an interruption they alone tell whether a send was done (publication.py). What
the trainer published is taken as hostile (ring.py, attachment.py). Loads acquire and stores release: bytes
written before a store are seen after the load that sees it, on ARM too.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec

COUNTERS_BYTES = 4096
COUNTERS_WORDS = COUNTERS_BYTES // 8
LINE_WORDS = 8  # 64 bytes


class Counter(enum.IntEnum):
    """The line of each counter; APPEND ONLY."""

    OUTBOX_HEAD = 0  # trainer writes: bytes published, and the current half of the residual (publication.py)
    INBOX_TAIL = 1  # trainer writes: bytes consumed
    MINI_BATCH = 2  # trainer writes: the mini-batch that it publishes with its next store of OUTBOX_HEAD
    INBOX_HEAD = 3  # daemon writes: bytes published
    OUTBOX_TAIL = 4  # daemon writes: bytes consumed
    RELOAD_WANTED = 5  # daemon writes: 1 while the inbox lacks updates and the trainer must reload
    STOPPING = 6  # daemon writes: 1 once the trainer should stop after its mini-batch
    GENERATION = 7  # daemon writes once: which attachment this page belongs to
    STATE_WANTED = 8  # daemon writes: while it wants the trainer's state, how often it has; else 0
    ROUNDS_OPENED = 9  # daemon writes, ring mode: how often this trainer was allowed to give a share
    CONTRIBUTORS = 10  # daemon writes, before it: nodes with a share in the round before
    SUMS = 11  # daemon writes, before it: which half of the sums has that round's, 0 or 1
    ADDING_US = 12  # daemon writes, before it: time spent on adding up shares since the trainer attached,
    SENDING_US = 13  # and on handing frames of rounds to the network, microseconds
    ROUND = 14  # daemon writes, before it: the number of the round that it opens
    RESIDUAL_COPY = 15  # trainer writes, if it keeps its residual elsewhere: the last copy (publication.py)


class Counters:
    """Typed access to a page of counters; `words` is its uint64[512] map."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def load(self, counter: Counter) -> int:
        """Return what the writer of this counter published last."""
        return codec.load_counter(self._words, counter * LINE_WORDS)

    def store(self, counter: Counter, value: int) -> None:
        """Publish a value, and with it everything written before."""
        codec.store_counter(self._words, counter * LINE_WORDS, value)
