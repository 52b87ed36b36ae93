"""A process of a contender: does its part of a round as often as it is told to.

It says `ready`, then reads lines: a moment of the monotonic clock, which all processes of a machine share,
at which to begin, and words of the contender's own. It says when it ended; told to go on, once all have
ended, the checksum of what it then has; and `ready` again. Not before: what one does after its end would take
the processors from those that are still at work.

What is given to sums are whole numbers below 2**10, so that every order of adding gives the same bits: all
contenders' sums must have one checksum.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire.codec import crc32c

Numbers = NDArray[np.float32]


def share_of(place: int, count: int) -> Numbers:
    """Return the contribution of process `place`, float32 (count,)."""
    chance = np.random.default_rng(place)
    return chance.integers(-1023, 1024, count, dtype=np.int16).astype(np.float32)


def serve(
    work: Callable[[list[str]], Numbers],
    *,
    prepare: Callable[[], None] = lambda: None,
    settle: Callable[[Numbers], Numbers] = lambda result: result,
) -> None:
    """Until the input ends. Only `work`, which gets the words, is timed: `prepare` comes before each, and
    `settle` makes what is summed up of its result.
    """
    prepare()
    print("ready", flush=True)
    for line in sys.stdin:
        moment, *words = line.split()
        wait_until(float(moment))
        result = work(words)
        print(f"{time.monotonic():.6f}", flush=True)
        sys.stdin.readline()
        print(f"{crc32c(settle(result).data.cast('B')):08x}", flush=True)
        prepare()
        print("ready", flush=True)


def wait_until(moment: float) -> None:
    """The last part awake: a timer may be late by as much as a small round takes."""
    while (left := moment - time.monotonic()) > 0:
        if left > 0.002:
            time.sleep(left - 0.002)
