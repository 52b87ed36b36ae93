"""The ranks of a group without PyTorch: a process for each, which trains half of one tensor and a whole one.

python tests/cli/local/part_trainer.py STEPS [RANK]
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
from numpy.typing import ArrayLike

import p2psgd
from p2psgd.ipc.listener import part_control
from p2psgd.ipc.part import Part, label_of, name_block

RANKS, ROWS, COLUMNS = 2, 5, 3
PLACES = ((0, 3), (3, 5))


def train(rank: int, steps: int) -> None:
    """Train one part; each step of each node adds as much to all its weights."""
    begin, end = PLACES[rank]
    block = name_block("matrix", ((begin, end), (0, COLUMNS)), (ROWS, COLUMNS))
    initial: dict[str, ArrayLike] = {block: np.zeros((end - begin, COLUMNS), np.float32)}
    if rank == 0:
        initial["bias"] = np.zeros(COLUMNS, np.float32)
    label = label_of("halves", Part(rank, RANKS), f"cut over {RANKS} ranks")
    with p2psgd.attach(initial, label=label, control=part_control(None, Part(rank, RANKS))) as link:
        while link.steps < steps and not link.stopping:
            link.receive()
            link.send(np.full(link.weights.size, 2.0**-10, np.float32), threshold=2**10 - 1)
            time.sleep(0.02)


def main() -> int:
    steps, rank = int(sys.argv[1]), sys.argv[2:]
    if rank:
        train(int(rank[0]), steps)
        return 0
    ranks = [subprocess.Popen([sys.executable, __file__, str(steps), str(number)]) for number in range(RANKS)]
    return max(process.wait() for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
