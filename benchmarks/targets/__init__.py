"""Time to a target loss by the number of nodes, as in the figure of [DistBelief 2012]: L-BFGS on exact sums,
Downpour with Adagrad, and asynchronous SGD, on one convex task.

`python -m benchmarks.targets` prints the table. The task: softmax regression on every fifth frame of
speech-small, 69,564 weights that begin at zero; the loss is the mean cross-entropy over all of these frames,
in nats. Nodes are paced: computing takes each a fixed time for a frame, however fast this machine is and
whatever else it does, so that its processors can be as many nodes as they have time for.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Final

import numpy as np

from benchmarks.rivals.speech import speech
from p2psgd.recipes.datasets import STATES, ArraySamples
from p2psgd.recipes.model import Shape
from p2psgd.recipes.recipe import parse_recipe

EVERY: Final = 5  # of the frames, one is taken
RECIPE: Final = parse_recipe(
    {"name": "targets", "data": "speech-small", "hidden": [], "run": {"mode": "closure"}},
    where="benchmarks.targets",
)
SHAPE: Final = Shape(340, RECIPE.hidden, STATES, RECIPE.activation)


class Way(StrEnum):
    LBFGS = "L-BFGS"
    DOWNPOUR = "Downpour with Adagrad"
    ASYNC = "asynchronous SGD"


@cache
def frames() -> ArraySamples:
    samples = speech("train")
    chosen = np.arange(0, len(samples.labels), EVERY)
    values = np.empty((len(chosen), samples.inputs), np.float32)
    samples.fill(chosen, values)
    return ArraySamples(values, samples.labels[chosen])
