"""Pre-training of a deep net of sigmoids, on the digits."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.strom2015.pretrain import Pretraining, pretrain
from p2psgd.base.errors import UsageError
from p2psgd.recipes.datasets import ArraySamples, Dataset, Samples, load_dataset
from p2psgd.recipes.gradients import loss_and_accuracy, net_shape
from p2psgd.recipes.model import Activation, Labels, Net, Shape, flat, initial_weights
from p2psgd.recipes.recipe import Recipe, load_recipe


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def deep(**changes: Any) -> Recipe:
    keys = {"hidden": (24,) * 5, "activation": Activation.SIGMOID, "batch": 16}
    return load_recipe("digits").model_copy(update=keys | changes)


def test_it_starts_a_deep_net_of_sigmoids_off_and_gives_the_same_bits_again(digits: Dataset) -> None:
    recipe = deep()
    said: list[str] = []
    how = Pretraining(part=0.5, epochs=20, learning_rate=0.3)
    tensors = pretrain(recipe, digits, how, said.append)
    shape = net_shape(recipe, digits)
    assert [(name, tensor.shape) for name, tensor in tensors.items()] == shape.tensors
    assert said[0] == "pre-training layer 1 of 5, 0 %"
    assert said[-1].startswith("pre-training layer 5 of 5, 9")

    drawn = initial_weights(shape, recipe.seed)
    assert loss_and_accuracy(shape, flat(tensors), digits.test)[1] > 0.8
    assert loss_and_accuracy(shape, flat(drawn), digits.test)[1] < 0.3

    again = pretrain(recipe, digits, how)
    assert all(np.array_equal(tensor, again[name]) for name, tensor in tensors.items())


def test_each_stage_goes_on_from_the_one_before(digits: Dataset) -> None:
    """Layer 1 of a net of one layer, pre-trained at rates that leave it as it is in the second stage."""
    recipe, how = deep(hidden=(8,)), Pretraining(part=0.1, epochs=1, learning_rate=0.1)
    first = pretrain(recipe, digits, how)
    drawn = initial_weights(Shape(64, (8, 8), 10, Activation.SIGMOID), recipe.seed)
    second = pretrain(recipe.model_copy(update={"hidden": (8, 8)}), digits, how)
    moved = np.abs(second["layer1.weight"] - first["layer1.weight"]).mean()
    assert 0 < moved < np.abs(second["layer1.weight"] - drawn["layer1.weight"]).mean()


class Watched:
    """Samples that remember which of them were used."""

    def __init__(self, samples: Samples) -> None:
        self._samples, self.used = samples, Counter[int]()

    @property
    def inputs(self) -> int:
        return self._samples.inputs

    @property
    def labels(self) -> Labels:
        return self._samples.labels

    def fill(self, rows: NDArray[np.int64], batch: NDArray[np.float32]) -> None:
        self.used.update(rows.tolist())
        self._samples.fill(rows, batch)


def test_each_layer_is_trained_on_the_part_as_often_as_the_table_says(digits: Dataset) -> None:
    train, test = Watched(digits.train), Watched(digits.test)
    how = Pretraining(part=0.1, epochs=3, learning_rate=0.1)
    pretrain(deep(hidden=(4, 4)), Dataset(train, test, digits.classes), how)
    assert len(train.used) == round(0.1 * len(digits.train.labels))
    assert set(train.used.values()) == {2 * 3}
    assert not test.used


def test_a_step_is_the_rate_of_the_table_times_the_gradient(digits: Dataset) -> None:
    rows = np.arange(len(digits.train.labels))
    how = Pretraining(part=1, epochs=1, learning_rate=0.25)
    recipe = deep(hidden=(4,), batch=len(rows))
    shape = net_shape(recipe, digits)
    begin = flat(initial_weights(shape, recipe.seed))
    inputs, gradient = np.empty((len(rows), digits.train.inputs), np.float32), np.empty_like(begin)
    digits.train.fill(rows, inputs)
    Net(shape, len(rows)).gradient(begin, inputs, digits.train.labels, gradient=gradient)
    np.testing.assert_allclose(flat(pretrain(recipe, digits, how)), begin - 0.25 * gradient, atol=1e-6)


@pytest.mark.parametrize(
    ("epochs", "words"), [(1, "a weight is not finite after the last"), (2, "the loss is nan after 1 mini")]
)
def test_weights_that_overflow_are_refused_with_the_rate_that_did_it(epochs: int, words: str) -> None:
    large = ArraySamples(np.full((16, 4), 1e37, np.float32), np.arange(16, dtype=np.int32) % 2)
    how = Pretraining(part=1, epochs=epochs, learning_rate=99)
    recipe = deep(hidden=(4,), activation=Activation.RELU)
    with pytest.raises(UsageError, match=rf"layer 1 diverged: {words}.*try a learning rate below 99"):
        pretrain(recipe, Dataset(large, large, 2), how)


def test_weights_beyond_what_a_run_can_hold_are_refused(digits: Dataset) -> None:
    how = Pretraining(part=0.1, epochs=5, learning_rate=99)
    with pytest.raises(UsageError, match=r"weights that no run starts from: weight .* within \+-8, 2"):
        pretrain(deep(hidden=(4,)), digits, how)


def test_a_net_without_hidden_layers_is_refused(digits: Dataset) -> None:
    with pytest.raises(UsageError, match=r"recipe digits has no hidden layer to pre-train"):
        pretrain(deep(hidden=()), digits, Pretraining())


def test_a_part_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"part=1\.5, .*: give a part of at most 1"):
        Pretraining(part=1.5)
