"""The training script of a chaos run in mode `closure`: gradient descent on all digits, as a user might
write it. It notes when each evaluation ended and what it gave (evaluations.py). A file `pause` beside its
notes holds the evaluation after which it pauses.

    python -m tests.chaos.closure_trainer NOTES
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import p2psgd
from p2psgd.base.errors import DaemonLost, TrainerError
from p2psgd.base.interruption import Interruption
from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.model import Net
from p2psgd.recipes.recipe import Recipe
from tests.chaos import evaluations
from tests.chaos.trainer import PAUSE

RECIPE: Final = Recipe(
    name="chaos", data="digits", hidden=(), batch=64, epochs=1, learning_rate=0.1, tau=0.03
)
EVERY_S: Final = 0.1

Vector = NDArray[np.float64]


class Loss:
    """The loss that is minimized; `computed`: whether this trainer has had a part in the last evaluation."""

    def __init__(self) -> None:
        dataset = load_dataset(RECIPE.data)
        self._samples, self.shape = dataset.train, net_shape(RECIPE, dataset)
        self._net: Any = Net(self.shape, RECIPE.batch, dtype="float64")
        self.count = len(self._samples.labels)
        self.computed = False

    def part(self, point: Vector, samples: range) -> tuple[float, Vector]:
        """Return what these samples add to the mean loss, and to its gradient (P,)."""
        self.computed = True
        rows, gradient = np.arange(samples.start, samples.stop), np.empty(point.size)
        inputs = np.empty((len(rows), self.shape.inputs), np.float32)
        self._samples.fill(rows, inputs)
        loss = self._net.gradient(point, inputs, self._samples.labels[rows], gradient=gradient)
        share = len(rows) / self.count
        return share * loss, share * gradient


def train(notes: Path) -> None:
    """Train until somebody wants the end."""
    loss, number = Loss(), 0
    point = np.zeros(loss.shape.weights)
    first = np.linspace(-1.0, 1.0, point.size, dtype=np.float32)  # whose bits memory.py finds, to flip one
    with (
        notes.open("a", buffering=1) as lines,
        p2psgd.attach(first, label="chaos", mode="closure") as link,
        Interruption() as interruption,
    ):

        def is_over() -> bool:
            return link.stopping or interruption.requested

        lines.write(f"{evaluations.BEGAN}\n")
        while not is_over():
            due = time.monotonic() + EVERY_S
            if number >= last_before_pause(notes.with_name(PAUSE)):
                time.sleep(EVERY_S)
                continue
            loss.computed = False
            try:
                value, gradient = link.evaluate(loss.part, point, loss.count)
            except TrainerError:
                if is_over():
                    break
                raise
            number += 1
            lines.write(f"{evaluations.note(number, value, gradient)}\n{time.monotonic():.4f}\n")
            point -= RECIPE.learning_rate * gradient
            link.report(loss=value)
            if loss.computed:  # else it catches up
                time.sleep(max(0.0, due - time.monotonic()))


def last_before_pause(pause: Path) -> float:
    """Return the evaluation after which trainers pause; infinite if they do not."""
    try:
        return int(pause.read_text())
    except FileNotFoundError:
        return float("inf")


if __name__ == "__main__":
    try:
        train(Path(sys.argv[1]))
    except DaemonLost as error:  # the next daemon starts a trainer, too
        sys.exit(f"{error}")
