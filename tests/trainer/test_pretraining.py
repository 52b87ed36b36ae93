"""Pre-training of a deep net of sigmoids, on the digits."""

from typing import Any

import numpy as np
import pytest

from p2psgd.errors import UsageError
from p2psgd.trainer.data import Dataset, load_dataset
from p2psgd.trainer.evaluation import loss_and_accuracy, net_shape
from p2psgd.trainer.initial import starting_weights
from p2psgd.trainer.net import Activation, Shape, initial_weights
from p2psgd.trainer.pretraining import pretrain
from p2psgd.trainer.recipe import PretrainTable, Recipe, load_recipe


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def deep(**changes: Any) -> Recipe:
    table = PretrainTable(part=0.5, epochs=20, learning_rate=0.3)
    keys = {"hidden": (24,) * 5, "activation": Activation.SIGMOID, "batch": 16, "pretrain": table}
    return load_recipe("digits").model_copy(update=keys | changes)


def test_it_starts_a_deep_net_of_sigmoids_off_and_gives_the_same_bits_again(digits: Dataset) -> None:
    recipe = deep()
    said: list[str] = []
    tensors = pretrain(recipe, digits, said.append)
    shape = net_shape(recipe, digits)
    assert [(name, tensor.shape) for name, tensor in tensors.items()] == shape.tensors
    assert said[0] == "pre-training layer 1 of 5, 0 %"
    assert said[-1].startswith("pre-training layer 5 of 5, 9")

    flat = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    drawn = np.concatenate([tensor.ravel() for tensor in initial_weights(shape, recipe.seed).values()])
    assert loss_and_accuracy(shape, flat, digits.test)[1] > 0.8
    assert loss_and_accuracy(shape, drawn, digits.test)[1] < 0.3

    again = pretrain(recipe, digits)
    assert all(np.array_equal(tensor, again[name]) for name, tensor in tensors.items())


def test_each_stage_goes_on_from_the_one_before(digits: Dataset) -> None:
    """Layer 1 of a net of one layer, pre-trained at rates that leave it as it is in the second stage."""
    recipe = deep(hidden=(8,), pretrain=PretrainTable(part=0.1, epochs=1, learning_rate=0.1))
    first = pretrain(recipe, digits)
    drawn = initial_weights(Shape(64, (8, 8), 10, Activation.SIGMOID), recipe.seed)
    second = pretrain(recipe.model_copy(update={"hidden": (8, 8)}), digits)
    moved = np.abs(second["layer1.weight"] - first["layer1.weight"]).mean()
    assert 0 < moved < np.abs(second["layer1.weight"] - drawn["layer1.weight"]).mean()


def test_a_recipe_without_the_table_is_refused(digits: Dataset) -> None:
    with pytest.raises(UsageError, match=r"recipe digits has no table \[pretrain\]: give it one"):
        pretrain(load_recipe("digits"), digits)


def test_a_recipe_with_the_table_is_not_trained_from_drawn_weights(digits: Dataset) -> None:
    words = (
        "recipe digits starts from pre-trained weights: make them once, p2psgd pretrain weights.npz with the"
    )
    with pytest.raises(UsageError, match=words):
        starting_weights(deep(), net_shape(deep(), digits), None)
