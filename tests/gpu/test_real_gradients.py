"""Passes one after the other over the gradients of a net that learns; the residual stays on the device."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.recipes.model import Activation, Net, Shape, initial_weights
from p2psgd.wire import codec
from tests.gpu.backends import Backend
from tests.gpu.passes import Group, by_the_core, delta_of

QUANTUM = 2.0**-20
SHAPE = Shape(64, (300, 70), 10, Activation.SIGMOID)
STEPS = (300, 80)  # quanta, of weights and of biases


def deltas(steps: int) -> list[NDArray[np.float32]]:
    """-rate * gradient of each mini-batch on samples of ten noisy patterns, while the weights learn."""
    chance = np.random.default_rng(11)
    patterns = chance.normal(0, 1, (10, SHAPE.inputs)).astype(np.float32)
    weights = np.concatenate([tensor.ravel() for tensor in initial_weights(SHAPE, 1).values()])
    net, gradient, made = Net(SHAPE, 64), np.empty(SHAPE.weights, np.float32), []
    for _ in range(steps):
        labels = chance.integers(0, 10, 64).astype(np.int32)
        inputs = patterns[labels] + chance.normal(0, 0.5, (64, SHAPE.inputs)).astype(np.float32)
        net.gradient(weights, inputs, labels, gradient=gradient)
        made.append(np.float32(-0.3) * gradient)
        weights += made[-1]
    return made


def groups() -> list[Group]:
    """Weights and biases by their steps, with little room."""
    ranges: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    end = 0
    for name, shape in SHAPE.tensors:
        begin, end = end, end + int(np.prod(shape))
        ranges[name.endswith("bias")].append((begin, end))
    return [
        Group(step * QUANTUM, tuple(own), room)
        for step, own, room in zip(STEPS, ranges, (700, 30), strict=True)
    ]


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_words_residual_and_weights_stay_those_of_the_core(gpu: Backend, kind: str) -> None:
    weights = SHAPE.weights
    kernels = gpu.load("kernels").Kernels()
    pass_group = gpu.load("pass_state").PassGroup
    state = kernels.make_state(weights, len(SHAPE.tensors))
    halves = [gpu.cupy.zeros(weights, np.float32) for _ in range(2)]
    copy = gpu.cupy.zeros(weights, np.float32)
    words = gpu.cupy.empty(730, np.uint32)
    residual, expected_copy = np.zeros(weights, np.float32), np.zeros(weights, np.float32)
    sent = 0
    for number, values in enumerate(deltas(25)):
        delta = delta_of(kind, values)
        expected = by_the_core(residual, delta, groups())
        residual = expected.target.view(np.float32)
        source, target = halves[number % 2], halves[1 - number % 2]
        plan = [pass_group(group.threshold, group.ranges, group.room) for group in groups()]
        kernels.residual_pass(source, gpu.cupy.asarray(delta), target, words, state, plan)
        result = state.read()
        assert list(result.counts) == expected.counts
        assert list(result.missed) == expected.missed
        assert target.get().tobytes() == residual.tobytes()
        for begin, group, found in zip((0, 700), groups(), expected.words, strict=True):
            own = words[begin:][: len(found)]
            assert own.get().tolist() == found
            if found:
                offsets = gpu.cupy.asarray(np.array([0, len(found)], np.uint32))
                kernels.apply(copy, own, offsets, gpu.cupy.asarray(np.array([group.threshold], np.float32)))
                codec.apply_weights(expected_copy, np.array(found, np.uint32), group.threshold)
            sent += len(found)
        assert copy.get().tobytes() == expected_copy.tobytes()
    assert sent > 2000
