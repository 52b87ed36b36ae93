"""Time to a target loss by the number of nodes, as in the figure of [DistBelief 2012]: L-BFGS on exact sums,
Downpour with Adagrad, and asynchronous SGD, on one convex task.

`python -m benchmarks.targets` prints the table. The task: softmax regression on every
fifth frame of speech-small, 69,564 weights that begin at zero; the loss is the mean cross-entropy over all
of these frames, in nats. Nodes are paced: computing takes each a fixed time for a frame, however fast this
machine is and whatever else it does, so that its processors can be as many nodes as they have time for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.speech import speech
from p2psgd.recipes.datasets import STATES

EVERY: Final = 5  # of the frames, one is taken
BATCH: Final = 100
QUANTUM: Final = 2.0**-20


class Way(StrEnum):
    LBFGS = "L-BFGS"
    DOWNPOUR = "Downpour with Adagrad"
    ASYNC = "asynchronous SGD"


class Task:
    """The frames, and the loss over them at any weights: (inputs x classes), then (classes,) of biases."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        samples = speech("train")
        chosen = np.arange(0, len(samples.labels), EVERY)
        frames = np.empty((len(chosen), samples.inputs), np.float32)
        samples.fill(chosen, frames)
        self._frames = frames.astype(dtype)
        self._labels = samples.labels[chosen].astype(np.intp)
        self.samples = len(chosen)
        self.weights = (samples.inputs + 1) * STATES

    def loss_and_gradient(
        self, weights: NDArray[Any], rows: NDArray[np.intp] | slice
    ) -> tuple[float, NDArray[Any]]:
        """Return the sum of these rows' losses, and of their gradients (P,)."""
        frames, labels = self._frames[rows], self._labels[rows]
        matrix, bias = weights[:-STATES].reshape(-1, STATES), weights[-STATES:]
        scores = frames @ matrix + bias
        scores -= scores.max(axis=1, keepdims=True)
        each = np.arange(len(labels))
        right = scores[each, labels]
        np.exp(scores, out=scores)
        totals = scores.sum(axis=1, keepdims=True)
        loss = float(np.log(totals).sum() - right.sum())
        scores /= totals
        scores[each, labels] -= 1
        return loss, np.concatenate([(frames.T @ scores).ravel(), scores.sum(axis=0)])

    def loss(self, weights: NDArray[Any]) -> float:
        """Return the mean loss over all frames."""
        parts = range(0, self.samples, 4096)
        return sum(self.loss_and_gradient(weights, slice(at, at + 4096))[0] for at in parts) / self.samples
