"""Plain SGD in one process by a case's recipe, without p2psgd: what the others are compared with.

It walks the samples as one node alone does, in the same mini-batches at the same rates, and takes each step
whole: no threshold, no residual, no lattice. As there, a sample weighs as much in the last, short mini-batch.
"""

from __future__ import annotations

import numpy as np

from p2psgd.recipes.datasets import Dataset
from p2psgd.recipes.gradients import HOST, check_loss, loss_and_accuracy, net_shape
from p2psgd.recipes.model import Net, Vector
from p2psgd.recipes.recipe import Recipe
from p2psgd.recipes.schedule import Order, Plan, RunPart, learning_rate

Curve = list[tuple[float, float]]  # (epoch, accuracy from 0 to 1)


def train_plainly(recipe: Recipe, dataset: Dataset, weights: Vector) -> Curve:
    """Train `weights` (P,) in place, and return the accuracy on the test samples after each epoch; UsageError
    if it diverges, as in a node.
    """
    shape, samples = net_shape(recipe, dataset), len(dataset.train.labels)
    plan, order = Plan(recipe, samples, RunPart(rank=0, world_size=1)), Order(samples, recipe.seed)
    net, feed = Net(shape, recipe.batch), HOST.feed(dataset.train, recipe.batch)
    gradient, curve = np.empty_like(weights), Curve()
    assert plan.steps is not None
    for number in range(plan.steps):
        positions = plan.walk.at(number)
        rate = learning_rate(
            recipe.learning_rate,
            plan.epoch(int(positions[0]), elapsed_s=0.0),
            hold_epochs=recipe.hold_epochs,
            halve_every_epochs=recipe.halve_every_epochs,
        )
        loss = net.gradient(weights, *feed.take(order.rows(positions)), gradient=gradient)
        check_loss(loss, recipe, steps=number, tau=None)
        gradient *= np.float32(rate * len(positions) / recipe.batch)
        weights -= gradient
        walked = (int(positions[-1]) + 1) / samples
        if walked >= len(curve) + 1:
            curve.append((walked, loss_and_accuracy(shape, weights, dataset.test)[1]))
    return curve
