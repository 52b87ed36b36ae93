"""Loss and accuracy over all test samples."""

import numpy as np
import pytest

from p2psgd.recipes.datasets import ArraySamples, load_dataset
from p2psgd.recipes.gradients import ROWS, evaluate, loss_and_accuracy, net_shape
from p2psgd.recipes.model import Net, initial_weights
from p2psgd.recipes.recipe import load_recipe


def test_all_samples_count_alike_whatever_the_last_piece_holds() -> None:
    recipe, data = load_recipe("digits"), load_dataset("digits")
    shape = net_shape(recipe, data)
    weights = np.concatenate([tensor.ravel() for tensor in initial_weights(shape, 1).values()])
    count = ROWS + 300
    rows = np.arange(count) % len(data.train.labels)
    inputs = np.empty((count, 64), np.float32)
    data.train.fill(rows, inputs)
    labels = data.train.labels[rows]
    loss, accuracy = loss_and_accuracy(shape, weights, ArraySamples(inputs, labels))
    whole_loss, whole_correct = Net(shape, count).loss(weights, inputs, labels)
    assert loss == pytest.approx(whole_loss, rel=1e-5)
    assert accuracy == whole_correct / count


def test_weights_that_know_nothing_are_as_good_as_chance() -> None:
    recipe = load_recipe("digits")
    data = load_dataset("digits")
    weights = np.zeros(net_shape(recipe, data).weights, np.float32)
    loss, accuracy = evaluate(recipe, weights)
    assert loss == pytest.approx(np.log(10))
    assert accuracy == pytest.approx(np.mean(data.test.labels == 0))
    assert evaluate(recipe, weights, data) == (loss, accuracy)
