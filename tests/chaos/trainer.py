"""The training script of a chaos run: a small net on handwritten digits at a steady pace, as a user might
write it. It notes the time of every mini-batch and pauses while there is a file `pause` beside its notes.

    python -m tests.chaos.trainer NOTES
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

RECIPE: Final = Recipe(  # 33,738 weights
    name="chaos", data="digits", hidden=(256, 64), batch=16, epochs=1, learning_rate=0.02, tau=0.03
)
MINI_BATCH_EVERY_S: Final = 0.1
STEP: Final = 400  # quanta of 2**-20: some hundreds of indices a mini-batch
PAUSE: Final = "pause"


def train(notes: Path) -> None:
    """Train until somebody wants the end."""
    pause = notes.with_name(PAUSE)
    dataset = load_dataset(RECIPE.data)
    shape = net_shape(RECIPE, dataset)
    net = Net(shape, RECIPE.batch)
    gradient = np.empty(shape.weights, np.float32)
    inputs = np.empty((RECIPE.batch, shape.inputs), np.float32)
    with (
        notes.open("a", buffering=1) as stamps,
        p2psgd.attach(initial_weights(shape, RECIPE.seed), label="chaos") as link,
        Interruption() as interruption,
    ):
        chance = np.random.default_rng()
        while not (link.stopping or interruption.wanted):
            due = time.monotonic() + MINI_BATCH_EVERY_S
            link.receive()
            if not pause.exists():
                rows = chance.integers(0, len(dataset.train.labels), RECIPE.batch)
                dataset.train.fill(rows, inputs)
                loss = net.gradient(link.weights, inputs, dataset.train.labels[rows], gradient=gradient)
                link.send(np.float32(-RECIPE.learning_rate) * gradient, threshold=STEP)
                link.report(loss=float(loss))
                stamps.write(f"{time.monotonic():.4f}\n")
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    try:
        train(Path(sys.argv[1]))
    except DaemonLost as error:  # killed: whoever starts it again starts a trainer too
        sys.exit(f"{error}")
