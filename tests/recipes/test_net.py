"""The net's arithmetic against finite differences, and its start."""

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.recipes.model import Activation, Net, Shape, initial_weights, layer_tensors

SHAPE = Shape(inputs=5, hidden=(7, 6), classes=4, activation=Activation.RELU)


def flat(shape: Shape, seed: int = 1) -> NDArray[np.float32]:
    return np.concatenate([tensor.ravel() for tensor in initial_weights(shape, seed).values()])


def test_tensors_follow_each_other_in_the_flat_vector() -> None:
    assert SHAPE.tensors == [
        ("layer1.weight", (7, 5)),
        ("layer1.bias", (7,)),
        ("layer2.weight", (6, 7)),
        ("layer2.bias", (6,)),
        ("layer3.weight", (4, 6)),
        ("layer3.bias", (4,)),
    ]
    assert SHAPE.weights == 5 * 7 + 7 + 7 * 6 + 6 + 6 * 4 + 4 == len(flat(SHAPE))


def test_the_start_is_the_same_everywhere_and_differs_by_seed() -> None:
    tensors = initial_weights(SHAPE, seed=1)
    assert [(name, tensor.shape) for name, tensor in tensors.items()] == SHAPE.tensors
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())
    assert not tensors["layer2.bias"].any()
    digest = hashlib.blake2b(flat(SHAPE).astype("<f4").tobytes(), digest_size=8).hexdigest()
    assert digest == "98566d2977342516"
    assert not np.array_equal(flat(SHAPE, 1), flat(SHAPE, 2))


def test_a_net_without_hidden_layers_is_a_softmax_regression() -> None:
    shape = Shape(inputs=3, hidden=(), classes=2, activation=Activation.RELU)
    gradient = np.empty(shape.weights, np.float32)
    inputs = np.array([[1, 2, 3]], np.float32)
    loss = Net(shape, 1).gradient(
        np.zeros(shape.weights, np.float32), inputs, np.array([1], np.int32), gradient=gradient
    )
    assert loss == pytest.approx(np.log(2))
    assert gradient.tolist() == pytest.approx([0.5, 1, 1.5, -0.5, -1, -1.5, 0.5, -0.5])


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("rows", [1, 8, 11])
def test_the_gradient_agrees_with_finite_differences(activation: Activation, rows: int) -> None:
    shape = Shape(inputs=5, hidden=(7, 6), classes=4, activation=activation)
    draw = np.random.default_rng(rows)
    weights = flat(shape) + draw.normal(0, 0.1, shape.weights).astype(np.float32)
    inputs = draw.normal(0, 1, (rows, 5)).astype(np.float32)
    labels = draw.integers(0, 4, rows).astype(np.int32)
    gradient = np.full(shape.weights, np.nan, np.float32)
    loss = Net(shape, 11).gradient(weights, inputs, labels, gradient=gradient)
    assert loss == pytest.approx(reference_loss(shape, weights, inputs, labels), rel=1e-5)
    bump = 1e-6
    for index in range(shape.weights):
        up, down = weights.astype(np.float64), weights.astype(np.float64)
        up[index] += bump
        down[index] -= bump
        slope = (reference_loss(shape, up, inputs, labels) - reference_loss(shape, down, inputs, labels)) / (
            2 * bump
        )
        assert gradient[index] == pytest.approx(slope, rel=1e-3, abs=1e-5), index


@pytest.mark.parametrize("layers", [1, 3])
def test_layers_are_ready_from_the_last_and_stay_as_they_are(layers: int) -> None:
    shape = SHAPE if layers == 3 else Shape(inputs=5, hidden=(), classes=4, activation=Activation.RELU)
    inputs, labels = np.ones((2, 5), np.float32), np.array([0, 3], np.int32)
    whole = np.empty(shape.weights, np.float32)
    Net(shape, 2).gradient(flat(shape), inputs, labels, gradient=whole)
    named = {name: np.full(size, np.nan, np.float32) for name, size in shape.tensors}
    seen: dict[str, NDArray[np.float32]] = {}
    order: list[int] = []

    def ready(layer: int) -> None:
        order.append(layer)
        seen.update((name, named[name].copy()) for name in layer_tensors(layer))

    Net(shape, 2).gradient(flat(shape), inputs, labels, gradient=named, ready=ready)
    assert order == list(range(layers, 0, -1))
    assert np.array_equal(np.concatenate([seen[name].ravel() for name, _ in shape.tensors]), whole)


def test_a_net_that_has_diverged_has_no_gradient() -> None:
    weights = np.full(SHAPE.weights, np.inf, np.float32)
    gradient = np.zeros(SHAPE.weights, np.float32)
    layers: list[int] = []
    inputs, labels = np.ones((1, 5), np.float32), np.array([0], np.int32)
    loss = Net(SHAPE, 1).gradient(weights, inputs, labels, gradient=gradient, ready=layers.append)
    assert not np.isfinite(loss)
    assert not gradient.any()
    assert layers == []


def reference_loss(
    shape: Shape, weights: NDArray[np.floating], inputs: NDArray[np.float32], labels: NDArray[np.int32]
) -> float:
    """The same net in float64, written as in a textbook."""
    values, start = inputs.astype(np.float64), 0
    for number, (width_in, width_out) in enumerate(shape.layers, start=1):
        middle = start + width_in * width_out
        into_unit = weights[start:middle].reshape(width_out, width_in)
        values = values @ into_unit.T + weights[middle : middle + width_out]
        start = middle + width_out
        if number < len(shape.layers):
            relu = shape.activation is Activation.RELU
            values = np.maximum(values, 0) if relu else 1 / (1 + np.exp(-values))
    log_sum = np.log(np.exp(values).sum(axis=1))
    return float((log_sum - values[np.arange(len(labels)), labels]).mean())


def test_loss_counts_what_is_classified_correctly() -> None:
    draw = np.random.default_rng(3)
    inputs = draw.normal(0, 1, (6, 5)).astype(np.float32)
    net, weights = Net(SHAPE, 6), flat(SHAPE)
    found = [
        label
        for row in inputs
        for label in range(4)
        if net.loss(weights, row[None], np.array([label], np.int32))[1]
    ]
    assert len(found) == 6
    labels = np.array(found, np.int32)
    assert net.loss(weights, inputs, labels)[1] == 6
    assert net.loss(weights, inputs, (labels + 1) % 4)[1] == 0


@pytest.mark.parametrize("activation", list(Activation))
def test_a_diverged_net_has_a_loss_that_is_not_finite_and_no_warning(activation: Activation) -> None:
    shape = Shape(inputs=5, hidden=(7,), classes=4, activation=activation)
    weights = np.full(shape.weights, np.inf, np.float32)
    loss = Net(shape, 2).gradient(
        weights,
        np.ones((2, 5), np.float32),
        np.zeros(2, np.int32),
        gradient=np.empty(shape.weights, np.float32),
    )
    assert not np.isfinite(loss)


def test_gradient_leaves_the_weights_and_the_inputs_alone() -> None:
    weights, inputs = flat(SHAPE), np.ones((2, 5), np.float32)
    weights.setflags(write=False)
    inputs.setflags(write=False)
    Net(SHAPE, 2).gradient(
        weights, inputs, np.zeros(2, np.int32), gradient=np.empty(SHAPE.weights, np.float32)
    )
