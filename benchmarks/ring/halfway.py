"""A training script in a dense ring that says when it is in the middle of a round.

    python -m benchmarks.ring.halfway NOTES COUNT PACE_S

It gives its first tensor half-way through the time that a round's computing takes, and the second at its end.
The first weight counts the rounds; the others change by what nobody else gives. Notes, on the monotonic clock
that all processes of a machine share: `half ROUND TIME` once the first tensor is given, and `done ROUND TIME
CHECKSUM CONTRIBUTORS`, of the weights, once the round is complete here.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

import numpy as np

import p2psgd
from p2psgd.base.errors import DaemonLost
from p2psgd.base.interruption import Interruption
from p2psgd.client.link import Link
from p2psgd.wire.codec import crc32c


def train(notes: TextIO, count: int, pace_s: float) -> None:
    """Until somebody wants the end."""
    chance = np.random.default_rng()
    initial = {name: np.zeros(count, np.float32) for name in ("first", "second")}
    with (
        p2psgd.attach(initial, mode="ring", payload="dense", label="halfway") as link,
        Interruption() as interruption,
    ):
        link.receive()
        while not (link.stopping or interruption.requested):
            give(link, notes, chance, pace_s)


def give(link: Link, notes: TextIO, chance: np.random.Generator, pace_s: float) -> None:
    """Contribute to one round."""
    for changes in link.proposed.values():
        changes[:] = chance.standard_normal(changes.size, np.float32)
    link.proposed["first"][0] = 1
    number = int(link.tensors["first"][0]) + 1
    time.sleep(pace_s / 2)
    link.allreduce_begin("first")
    notes.write(f"half {number} {time.monotonic():.4f}\n")
    time.sleep(pace_s / 2)
    link.allreduce_begin("second")
    contributors = link.allreduce_wait()
    if contributors:
        done, now = int(link.tensors["first"][0]), time.monotonic()
        notes.write(f"done {done} {now:.4f} {crc32c(link.weights.data.cast('B')):08x} {contributors}\n")


def main() -> None:
    path, count, pace_s = sys.argv[1:]
    with Path(path).open("a", buffering=1) as notes:
        try:
            train(notes, int(count), float(pace_s))
        except DaemonLost as error:  # killed: whoever starts it again starts a trainer too
            sys.exit(f"{error}")


if __name__ == "__main__":
    main()
