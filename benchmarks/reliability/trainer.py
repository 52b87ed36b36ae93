"""A training script at a steady pace, as a user might write it, that notes what it sends and what arrives.

    python -m benchmarks.reliability.trainer NOTES RATE [WEIGHTS INDICES]

Without WEIGHTS it trains a net of 100,234 weights on handwritten digits; with them it changes INDICES of
WEIGHTS weights at random, never the last eighth of them. Notes, on the monotonic clock, of which all
processes of a machine have the same: `s NUMBER BEGIN END` for each mini-batch sent, `a NODE NUMBER TIME` once
a peer's is in the weights here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

import numpy as np
from numpy.typing import NDArray

import p2psgd
from p2psgd.base.errors import DaemonLost
from p2psgd.base.interruption import Interruption
from p2psgd.client.link import Link
from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.model import Net, initial_weights
from p2psgd.recipes.recipe import Recipe

RECIPE: Final = Recipe(  # 100,234 weights
    name="paced", data="digits", hidden=(512, 128), batch=16, epochs=1, learning_rate=0.02, tau=0.03
)
STEP: Final = 600  # quanta of 2**-20
STILL: Final = 8  # the last weights, one in so many, never change

Vector = NDArray[np.float32]
MakeDelta = Callable[[Vector], Vector]


def first_weights(count: int) -> Vector:
    """Return initial weights that are equal on every node, with no two stretches alike."""
    return (np.random.default_rng(1).integers(-(2**15), 2**15, count) * 2.0**-20).astype(np.float32)


def real_net() -> tuple[dict[str, Vector], MakeDelta]:
    dataset = load_dataset(RECIPE.data)
    shape = net_shape(RECIPE, dataset)
    net, chance = Net(shape, RECIPE.batch), np.random.default_rng()
    gradient = np.empty(shape.weights, np.float32)
    inputs = np.empty((RECIPE.batch, shape.inputs), np.float32)

    def make_delta(weights: Vector) -> Vector:
        rows = chance.integers(0, len(dataset.train.labels), RECIPE.batch)
        dataset.train.fill(rows, inputs)
        net.gradient(weights, inputs, dataset.train.labels[rows], gradient=gradient)
        delta: Vector = np.float32(-RECIPE.learning_rate) * gradient
        return delta

    return initial_weights(shape, RECIPE.seed), make_delta


def random_changes(weights: int, indices: int) -> tuple[Vector, MakeDelta]:
    chance = np.random.default_rng()
    delta = np.zeros(weights, np.float32)
    change = np.float32(1.2 * STEP * 2.0**-20)

    def make_delta(_: Vector) -> Vector:
        delta.fill(0)
        chosen = chance.integers(0, weights - weights // STILL, indices)
        delta[chosen] = change * chance.choice((np.float32(-1), np.float32(1)), indices)
        return delta

    return first_weights(weights), make_delta


class Arrivals:
    """Notes what has come from peers, each mini-batch once."""

    def __init__(self, link: Link, notes: TextIO) -> None:
        self._link, self._notes = link, notes
        self._seen = dict(link.peer_steps)

    def take(self) -> None:
        self._link.receive()
        now = time.monotonic()
        for node, last in self._link.peer_steps.items():
            for number in range(self._seen.get(node, last - 1) + 1, last + 1):
                self._notes.write(f"a {node:016x} {number} {now:.5f}\n")
            self._seen[node] = last


def train(notes_path: Path, rate: float, initial: Vector | dict[str, Vector], make_delta: MakeDelta) -> None:
    """Train until somebody wants the end."""
    with (
        notes_path.open("a", buffering=1) as notes,
        p2psgd.attach(initial, label="paced") as link,
        Interruption() as interruption,
    ):
        arrivals = Arrivals(link, notes)
        due = time.monotonic()
        while not (link.stopping or interruption.requested):
            arrivals.take()
            delta = make_delta(link.weights)
            begin = time.monotonic()
            link.send(delta, threshold=STEP)
            notes.write(f"s {link.steps} {begin:.5f} {time.monotonic():.5f}\n")
            due = max(due + 1 / rate, time.monotonic())  # what was late is not made up for
            while (left := due - time.monotonic()) > 0 and not (link.stopping or interruption.requested):
                if link.wait(left):
                    arrivals.take()


def main() -> None:
    path, rate, *size = sys.argv[1:]
    made = random_changes(*map(int, size)) if size else real_net()
    try:
        train(Path(path), float(rate), *made)
    except DaemonLost as error:  # killed: whoever starts it again starts a trainer too
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
