"""`p2psgd` with a probe in the daemon's loop: how late is a timer of 2 ms, and how much did the loop compute?

Notes three float64 each time, in the file that $P2PSGD_PROBE names: the time on the monotonic clock, the
seconds that the timer was late, and the CPU seconds of the loop's thread since it was set. What is late
without computing was kept from running by the machine's other work.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import p2psgd.node.daemon
from p2psgd.base.errors import ExitCode
from p2psgd.cli.app import main

VARIABLE: Final = "P2PSGD_PROBE"
EVERY_S: Final = 0.002
NOTE: Final = struct.Struct("=ddd")


async def probe(path: Path) -> None:
    with path.open("ab") as notes:
        while True:
            due, spent = time.monotonic() + EVERY_S, time.thread_time()
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            notes.write(NOTE.pack(now, now - due, time.thread_time() - spent))


class ProbedNode(p2psgd.node.daemon.Node):
    """A node whose loop is watched as long as it serves."""

    async def serve(self) -> ExitCode:
        task = asyncio.create_task(probe(Path(os.environ[VARIABLE])))
        try:
            return await super().serve()
        finally:
            task.cancel()


def read_notes(path: Path, begin: float, end: float) -> NDArray[np.float64]:
    """The notes of that time, (count, 3)."""
    raw = path.read_bytes()
    notes = np.frombuffer(raw[: len(raw) // NOTE.size * NOTE.size], np.float64).reshape(-1, 3)
    chosen: NDArray[np.float64] = notes[(notes[:, 0] >= begin) & (notes[:, 0] <= end)]
    return chosen


if __name__ == "__main__":
    vars(p2psgd.node.daemon)["Node"] = ProbedNode
    main()
