from __future__ import annotations

import subprocess
import sys

import numpy as np
from numpy.typing import NDArray

from tests.chaos.memory import BIT, flip

# Two arrays with the same numbers, one of which is said to be the replica, and told on demand.
PROCESS = """
import sys
import numpy as np
other = np.arange(100_000, dtype=np.int32) * 7919
replica = other.copy()
for line in sys.stdin:
    replica[::50] += 1
    sys.stdout.buffer.write(replica.tobytes())
    sys.stdout.buffer.flush()
"""


def test_the_bit_flips_in_the_replica_alone_although_it_changes_meanwhile() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def read() -> NDArray[np.int32]:
            stdin.write(b"\n")
            stdin.flush()
            return np.frombuffer(stdout.read(400_000), np.int32)

        before = read()
        assert flip(process.pid, read, 12_345)
        changed = np.flatnonzero((read() ^ before) & BIT)
        assert changed.tolist() == [12_345]
        assert not flip(process.pid, lambda: np.zeros(100_000, np.int32), 5)
        process.kill()
