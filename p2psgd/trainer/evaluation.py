"""How good a net is: loss and accuracy on samples it was not trained on."""

from __future__ import annotations

import numpy as np

from p2psgd.errors import ExitCode, UsageError
from p2psgd.trainer.backend import HOST, Backend
from p2psgd.trainer.data import Dataset, load_data_of
from p2psgd.trainer.net import Net, Shape, Vector
from p2psgd.trainer.recipe import Recipe
from p2psgd.trainer.samples import Samples
from p2psgd.wire.codec import WEIGHTS_MAX

ROWS = 1024  # at a time: large enough for the matrix product, small enough for the cache


def net_shape(recipe: Recipe, dataset: Dataset) -> Shape:
    """The net that this recipe trains on these data; UsageError if an index cannot count its weights."""
    shape = Shape(dataset.train.inputs, recipe.hidden, dataset.classes, recipe.activation)
    if shape.weights > WEIGHTS_MAX:
        raise UsageError(
            f"recipe {recipe.name} makes a net of {shape.weights} weights; at most {WEIGHTS_MAX} will do",
            ExitCode.CONFIGURATION,
        )
    return shape


def evaluate(recipe: Recipe, weights: Vector, dataset: Dataset | None = None) -> tuple[float, float]:
    """Return the mean cross-entropy in nats and the accuracy, 0 to 1, of weights (P,) on the test samples.

    What may come behind the weights counts shards (shard_counts.py).

    The recipe's data are loaded unless they are given. Raises UsageError if they cannot be.
    """
    if dataset is None:
        dataset = load_data_of(recipe)
    shape = net_shape(recipe, dataset)
    return loss_and_accuracy(shape, weights[: shape.weights], dataset.test)


def loss_and_accuracy(
    shape: Shape, weights: Vector, samples: Samples, backend: Backend = HOST
) -> tuple[float, float]:
    """Mean cross-entropy in nats and accuracy, 0 to 1, over all samples; weights (P,) of the backend's."""
    net, feed = Net(shape, ROWS, backend.xp), backend.feed(samples, ROWS)
    total_loss, total_correct = 0.0, 0
    count = len(samples.labels)
    for start in range(0, count, ROWS):
        rows = np.arange(start, min(start + ROWS, count))
        loss, correct = net.loss(weights, *feed.take(rows))
        total_loss += loss * len(rows)
        total_correct += correct
    return total_loss / count, total_correct / count
