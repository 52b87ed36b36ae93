"""What the built-in trainer computes on a device, beside numpy."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import HOST, evaluate, loss_and_accuracy, net_shape
from p2psgd.recipes.model import Activation, Net, Shape, initial_weights
from p2psgd.recipes.recipe import load_recipe
from p2psgd.recipes.schedule import Order
from tests.gpu.backends import Backend


@pytest.mark.parametrize("kind", ["CopyingFeed", "ResidentFeed"])
@pytest.mark.parametrize("data", ["digits", "speech-small"])
def test_mini_batches_come_to_the_device_as_they_are(gpu: Backend, kind: str, data: str) -> None:
    samples = load_dataset(data).test
    order = Order(len(samples.labels), 1)
    there = getattr(gpu.load("backend"), kind)(samples, 100)
    here = HOST.feed(samples, 100)
    for begin, count in ((0, 100), (100, 100), (200, 1), (1, 99), (300, 100)):
        rows = order.rows(np.arange(begin, begin + count))
        inputs, labels = there.take(rows)
        expected, classes = here.take(rows)
        np.testing.assert_array_equal(inputs.get(), expected)
        np.testing.assert_array_equal(labels.get(), classes)


def test_samples_that_are_too_many_for_the_device_are_brought_batch_by_batch(
    gpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, samples = gpu.load("backend"), load_dataset("digits").test
    backend = module.DeviceBackend(copy_s=1)
    assert type(backend.feed(samples, 10)) is module.ResidentFeed
    monkeypatch.setattr(module, "RESIDENT_BYTES_MAX", 4 * len(samples.labels) * samples.inputs - 1)
    assert type(backend.feed(samples, 10)) is module.CopyingFeed


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("by_tensor", [False, True])
def test_the_gradient_is_that_of_numpy_up_to_rounding(
    gpu: Backend, activation: Activation, by_tensor: bool
) -> None:
    shape = Shape(inputs=30, hidden=(40, 25), classes=10, activation=activation)
    draw = np.random.default_rng(3)
    flat = np.concatenate([tensor.ravel() for tensor in initial_weights(shape, 1).values()])
    inputs = draw.normal(0, 1, (50, 30)).astype(np.float32)
    labels = draw.integers(0, 10, 50).astype(np.int32)
    expected = np.empty(shape.weights, np.float32)
    loss = Net(shape, 64).gradient(flat, inputs, labels, gradient=expected)
    cupy = gpu.cupy
    net = Net(shape, 64, cupy)
    weights, inputs, labels = map(cupy.asarray, (flat, inputs, labels))
    layers: list[int] = []
    if by_tensor:
        gradient = {name: cupy.empty(sides, np.float32) for name, sides in shape.tensors}
        found = net.gradient(weights, inputs, labels, gradient=gradient, ready=layers.append)
        whole = np.concatenate([tensor.get().ravel() for tensor in gradient.values()])
        assert layers == [3, 2, 1]
    else:
        one = cupy.empty(shape.weights, np.float32)
        found = net.gradient(weights, inputs, labels, gradient=one)
        whole = one.get()
    assert found == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-6)


def test_a_net_that_has_diverged_has_no_loss_on_the_device_either(gpu: Backend) -> None:
    shape = Shape(inputs=3, hidden=(4,), classes=2, activation=Activation.RELU)
    cupy = gpu.cupy
    weights = cupy.asarray(np.full(shape.weights, 1e38, np.float32))
    inputs, labels = cupy.asarray(np.ones((2, 3), np.float32)), cupy.asarray(np.zeros(2, np.int32))
    gradient = cupy.zeros(shape.weights, np.float32)
    assert not np.isfinite(Net(shape, 2, cupy).gradient(weights, inputs, labels, gradient=gradient))
    assert not gradient.get().any()


def test_a_net_is_as_good_on_the_device(gpu: Backend) -> None:
    recipe, dataset = load_recipe("digits"), load_dataset("digits")
    shape = net_shape(recipe, dataset)
    flat = np.concatenate([tensor.ravel() for tensor in initial_weights(shape, 1).values()])
    backend = gpu.load("backend").DeviceBackend(copy_s=1)
    loss, accuracy = loss_and_accuracy(shape, gpu.cupy.asarray(flat), dataset.test, backend)
    expected = evaluate(recipe, flat, dataset)
    assert (loss, accuracy) == pytest.approx(expected, rel=1e-5)
