"""A bit of a daemon's replica flips in its memory, behind its back, as bad memory would have it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

BIT: Final = 1 << 22  # of quanta of 2**-20: a weight changes by 4
PROBES: Final = 4  # places at which a copy is looked for: training may change one meanwhile
ALIKE: Final = 0.9  # of the coordinates: then it is a copy, of now or of some time ago


def flip(pid: int, read: Callable[[], NDArray[np.int32]], index: int) -> bool:
    """Flip a bit of coordinate `index` in whichever copy of process `pid` is its replica, which `read` gives.

    False if it was not found. ProcessLookupError or OSError if the process is gone.
    """
    replica = read()
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        for address in dict.fromkeys(_copies(pid, memory, replica)):
            place = address + 4 * index
            wrong = int.from_bytes(os.pread(memory, 4, place), "little", signed=True) ^ BIT
            os.pwrite(memory, wrong.to_bytes(4, "little", signed=True), place)
            if abs(int(read()[index]) - wrong) < BIT // 2:
                return True
            os.pwrite(memory, (wrong ^ BIT).to_bytes(4, "little", signed=True), place)
    finally:
        os.close(memory)
    return False


def _copies(pid: int, memory: int, replica: NDArray[np.int32]) -> Iterator[int]:
    """Where in the process's writable memory something very much like the replica lies."""
    told = np.flatnonzero(replica[:-1])  # a zero would be found everywhere
    starts = told[:: max(1, len(told) // PROBES)]
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        region = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
        if region is None:
            continue
        begin, end = int(region[1], 16), int(region[2], 16)
        try:
            content = os.pread(memory, end - begin, begin)
        except OSError:  # gone meanwhile, or a device
            continue
        words = np.frombuffer(content, np.int32)
        for start in starts:
            alike = (words[:-1] == replica[start]) & (words[1:] == replica[start + 1])
            for base in np.flatnonzero(alike) - start:
                copy = words[base : base + len(replica)] if base >= 0 else words[:0]
                if len(copy) == len(replica) and np.mean(copy == replica) > ALIKE:
                    yield begin + 4 * int(base)
