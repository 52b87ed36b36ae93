"""The training script of a chaos run: a small net on handwritten digits at a steady pace, as a user might
write it. It notes the time of every mini-batch and what it counts to (counts.py), and pauses while there is a
file `pause` beside its notes.

    python -m tests.chaos.trainer NOTES MODE [SECONDS]

SECONDS: from one mini-batch to the next, 0.1 unless given.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

import p2psgd
from p2psgd.base.errors import DaemonLost
from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.main import Interruption
from p2psgd.recipes.model import Net, initial_weights
from p2psgd.recipes.recipe import Recipe
from tests.chaos import counts

RECIPE: Final = Recipe(  # 33,738 weights
    name="chaos", data="digits", hidden=(256, 64), batch=16, epochs=1, learning_rate=0.02, tau=0.03
)
PAUSE: Final = "pause"


def train(notes: Path, mode: str, every_s: float = 0.1) -> None:
    """Train until somebody wants the end."""
    pause = notes.with_name(PAUSE)
    dataset = load_dataset(RECIPE.data)
    shape = net_shape(RECIPE, dataset)
    net = Net(shape, RECIPE.batch)
    gradient = np.empty(shape.weights, np.float32)
    inputs = np.empty((RECIPE.batch, shape.inputs), np.float32)
    stretch = max(counts.read(notes.read_text().splitlines() if notes.exists() else []), default=-1) + 1
    first = counts.initial(initial_weights(shape, RECIPE.seed))
    with (
        notes.open("a", buffering=1) as lines,
        p2psgd.attach(first, label="chaos", mode=mode) as link,
        Interruption() as interruption,
    ):
        chance = np.random.default_rng()
        number, made = int(link.node.removeprefix("node-")), 0
        of_net, places = counts.is_net(len(link.weights)), counts.places(len(link.weights))[number]
        while not (link.stopping or interruption.wanted):
            due = time.monotonic() + every_s
            link.receive()
            if not pause.exists():
                rows = chance.integers(0, len(dataset.train.labels), RECIPE.batch)
                dataset.train.fill(rows, inputs)
                loss = net.gradient(
                    link.weights[of_net], inputs, dataset.train.labels[rows], gradient=gradient
                )
                delta = np.zeros(len(link.weights), np.float32)
                delta[of_net] = np.float32(-RECIPE.learning_rate) * gradient
                if stretch < counts.STRETCHES:  # sent at once, whatever the residual has there
                    place = places[stretch]
                    delta[place] = 1.5 * counts.STEP * link.quantum - link.residual[place]
                    lines.write(f"begun {stretch}\n")
                link.send(delta, threshold=counts.STEP)
                if stretch < counts.STRETCHES:
                    lines.write(f"ended {stretch}\n")
                made += 1
                stretch += made % counts.LENGTH == 0
                link.report(loss=float(loss))
                lines.write(f"{time.monotonic():.4f}\n")
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    try:
        train(Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:]))
    except DaemonLost as error:  # killed: whoever starts it again starts a trainer too
        sys.exit(f"{error}")
