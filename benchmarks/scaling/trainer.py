"""A training script at the paper's pace that computes nothing: it waits so long instead.

    python -m benchmarks.scaling.trainer NOTES WAY COMPUTING_S WEIGHTS DELTAS

WAY is async, owners or owners-rounds, or the payload of a ring: sparse or dense. DELTAS is a file of float32,
somewhat more of them than weights: a delta is WEIGHTS of them from a place drawn anew for each step, so that
indices differ from step to step and nothing is spent on making them. In a dense ring the shares stay as they
are. Notes after each step, on the clock that all processes of a machine share: time, mini-batches, updates
received, peers heard of, this process's CPU seconds, seconds in receive and in send.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final, TextIO

import numpy as np
from numpy.typing import NDArray

import p2psgd
from benchmarks.scaling.model import DENSE_TENSORS
from p2psgd.base.errors import DaemonLost
from p2psgd.base.interruption import Interruption
from p2psgd.client.link import Link

STEP: Final = 16  # quanta
SPARE: Final = 1 << 16  # places from which a delta may begin
# Just beyond the step: an index is sent when it comes, and what is left of it never grows to another one.
CHANGE: Final = STEP * 2.0**-20 * (1 + 2**-12)


def write_deltas(path: Path, weights: int, density: float) -> None:
    """The file, the same for all nodes."""
    chance = np.random.default_rng(850)
    values = np.zeros(weights + SPARE, np.float32)
    chosen = np.flatnonzero(chance.random(len(values), np.float32) < density)
    values[chosen] = CHANGE * chance.choice((-1, 1), len(chosen))
    values.tofile(path)


class Paced:
    """Steps of one link."""

    def __init__(self, link: Link, notes: TextIO, computing_s: float, deltas: NDArray[np.float32]) -> None:
        self._link, self._notes, self._computing_s, self._deltas = link, notes, computing_s, deltas
        self._chance = np.random.default_rng()
        self._received = 0
        self._receiving_s = self._sending_s = 0.0

    def step(self) -> None:
        """Make one step of an asynchronous run or a sparse ring."""
        link = self._link
        begin = time.monotonic()
        self._received += link.receive()
        self._receiving_s += time.monotonic() - begin
        time.sleep(self._computing_s)
        place = self._chance.integers(SPARE)
        begin = time.monotonic()
        link.send(self._deltas[place : place + link.weights.size], threshold=STEP)
        self._sending_s += time.monotonic() - begin
        self._note()

    def dense_step(self) -> None:
        """Make one step of a dense ring: each tensor is given when its part of the computing is over."""
        link = self._link
        for name in link.proposed:
            time.sleep(self._computing_s / DENSE_TENSORS)
            link.allreduce_begin(name)
        begin = time.monotonic()
        link.allreduce_wait()
        self._receiving_s += time.monotonic() - begin
        self._note()

    def _note(self) -> None:
        link = self._link
        peers = link.contributors - 1 if link.mode.dense else len(link.peer_steps)
        counts = f"{link.steps} {self._received} {peers}"
        spent = f"{time.process_time():.4f} {self._receiving_s:.4f} {self._sending_s:.4f}"
        self._notes.write(f"{time.monotonic():.5f} {counts} {spent}\n")


def main() -> None:
    path, way, computing_s, count, deltas_path = sys.argv[1:]
    ways = {"async": ("async", None), "owners": ("owners", None), "owners-rounds": ("owners", None)}
    mode, payload = ways.get(way, ("ring", way))
    weights = int(count)
    deltas = np.memmap(deltas_path, np.float32, "r")
    bounds = [weights * part // DENSE_TENSORS for part in range(DENSE_TENSORS + 1)]
    initial = {
        f"tensor-{part}": np.zeros(bounds[part + 1] - bounds[part], np.float32)
        for part in range(DENSE_TENSORS)
    }
    try:
        with (
            open(path, "a", buffering=1, encoding="ascii") as notes,
            p2psgd.attach(
                initial, label="paced", mode=mode, payload=payload, rounds=way == "owners-rounds"
            ) as link,
            Interruption() as interruption,
        ):
            paced = Paced(link, notes, float(computing_s), deltas)
            link.receive()
            step = paced.dense_step if way == "dense" else paced.step
            while not (link.stopping or interruption.requested):
                step()
    except DaemonLost as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
