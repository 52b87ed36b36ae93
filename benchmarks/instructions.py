"""Instructions per index of encoding and decoding, by path: `python -m benchmarks.instructions`.

Time on a shared machine is noisy, the number of instructions is not. Where the processor's own counters
can be read, `perf stat -e instructions:u,cycles:u python -m benchmarks.instructions WAY ROUNDS` gives the
cycles too; virtual machines mostly hide them, so valgrind counts here (cachegrind without caches). It runs
each job twice, with few and with many rounds: the difference is the work, without Python's start.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

import numpy as np

from benchmarks.codec import WEIGHTS_PER_INDEX, uniform_words
from p2psgd.wire import _native, codec

COUNT: Final = 17_176
FEW, MANY = 10, 60


def work(way: str, rounds: int) -> None:
    """Encode or decode one uniform update that many times: the work that is counted."""
    weights = COUNT * WEIGHTS_PER_INDEX
    words = uniform_words(np.random.default_rng(4), weights=weights, count=COUNT)
    payload = codec.encode(words, weights)
    for _ in range(rounds):
        if way == "encode":
            codec.encode(words, weights)
        else:
            codec.decode(payload, COUNT, weights)


def instructions(path: str, way: str, rounds: int) -> int:
    """Return the instructions of a whole process that does the work."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, "-m", __spec__.name, way, str(rounds)]
    # Nothing else may differ between the two runs: neither dictionaries nor how long numpy's threads spin.
    environment = os.environ | {"P2PSGD_CPU": path, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"valgrind failed:\n{done.stderr}")
    return int(found[1].replace(",", ""))


def main() -> None:
    if len(sys.argv) == 3:
        work(sys.argv[1], int(sys.argv[2]))
        return
    for path, _, runs_here in _native.paths():
        for way in ("encode", "decode") if runs_here else ():
            few, many = (instructions(path, way, rounds) for rounds in (FEW, MANY))
            print(
                f"{path:<12} {way} {(many - few) / (MANY - FEW) / COUNT:6.2f} instructions per index",
                flush=True,
            )


if __name__ == "__main__":
    main()
