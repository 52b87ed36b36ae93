"""The training script of a chaos run: a small net on handwritten digits at a steady pace, as a user might
write it. It notes the time of every mini-batch and what it counts to (counts.py), and pauses while there is a
file `pause` beside its notes.

    python -m tests.chaos.trainer NOTES MODE [SECONDS]

MODE: a word of p2psgd.wire.mode. Where owners follow a rule the script sends gradients, and none of its
mini-batches counts to anything: a rule makes something else of them. SECONDS: from one mini-batch to the
next, 0.1 unless given.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final, TextIO

import numpy as np
from numpy.typing import NDArray

import p2psgd
from p2psgd.base.errors import DaemonLost
from p2psgd.base.interruption import Interruption
from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.model import Net, initial_weights
from p2psgd.recipes.recipe import Recipe
from p2psgd.wire.mode import parse_mode
from tests.chaos import counts

RECIPE: Final = Recipe(  # 33,738 weights
    name="chaos", data="digits", hidden=(256, 64), batch=16, epochs=1, learning_rate=0.02, tau=0.03
)
GRADIENT: Final = 2**15  # quanta: a threshold of 1/32 for gradients
RULE_RATE: Final = 0.005
PAUSE: Final = "pause"


def train(notes: Path, word: str, every_s: float = 0.1) -> None:
    """Train until somebody wants the end."""
    mode = parse_mode(word)
    way, rule = ("owners", mode.rule.word) if mode.owners else ("async", None)
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
        p2psgd.attach(first, label="chaos", mode=way, rule=rule, rounds=mode.rounds) as link,
        Interruption() as interruption,
    ):
        chance = np.random.default_rng()
        number, made = int(link.node.removeprefix("node-")), 0
        of_net, places = counts.is_net(len(link.weights)), counts.places(len(link.weights))[number]
        while not (link.stopping or interruption.requested):
            due = time.monotonic() + every_s
            link.receive()
            if not pause.exists():
                rows = chance.integers(0, len(dataset.train.labels), RECIPE.batch)
                dataset.train.fill(rows, inputs)
                loss = net.gradient(
                    link.weights[of_net], inputs, dataset.train.labels[rows], gradient=gradient
                )
                delta = np.zeros(len(link.weights), np.float32)
                if mode.rule.gradients:
                    delta[of_net] = gradient
                    link.send(delta, threshold=GRADIENT, rate=RULE_RATE)
                else:
                    delta[of_net] = np.float32(-RECIPE.learning_rate) * gradient
                    _send_counted(link, delta, stretch, places, lines)
                made += 1
                stretch += made % counts.LENGTH == 0
                link.report(loss=float(loss))
                lines.write(f"{time.monotonic():.4f}\n")
            time.sleep(max(0.0, due - time.monotonic()))


def _send_counted(
    link: p2psgd.Link, delta: counts.Vector, stretch: int, places: NDArray[np.int64], lines: TextIO
) -> None:
    """Send a change that counts one mini-batch more in its stretch, and note both ends of it."""
    if stretch < counts.STRETCHES:  # sent at once, whatever the residual has there
        place = places[stretch]
        delta[place] = 1.5 * counts.STEP * link.quantum - link.residual[place]
        lines.write(f"begun {stretch}\n")
    link.send(delta, threshold=counts.STEP)
    if stretch < counts.STRETCHES:
        lines.write(f"ended {stretch}\n")


if __name__ == "__main__":
    try:
        train(Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:]))
    except DaemonLost as error:  # the next daemon starts a trainer, too
        sys.exit(f"{error}")
