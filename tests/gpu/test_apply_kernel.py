"""Updates applied on the device give, bit for bit, the weights that the native core makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.wire import codec
from tests.gpu.backends import Backend, schedule
from tests.wire.arrays import random_words, uint32

QUANTUM = 2.0**-20

Update = tuple[NDArray[np.uint32], int]


def start(weights: int, seed: int = 0) -> NDArray[np.float32]:
    coordinates = np.random.default_rng(seed).integers(-(2**22), 2**22, weights)
    return (coordinates * QUANTUM).astype(np.float32)


def applied_on_the_device(
    gpu: Backend, values: NDArray[np.float32], updates: Sequence[Update], *, quantum: float, offset: int
) -> NDArray[np.float32]:
    """The weights lie between others, and the words `offset` behind where their memory begins."""
    kernels = gpu.load("kernels").Kernels()
    memory = gpu.cupy.asarray(np.concatenate([np.full(3, 77.0), values, np.full(3, 77.0)]).astype(np.float32))
    lengths = [len(words) for words, _ in updates]
    words = np.concatenate([np.zeros(offset, np.uint32), *(words for words, _ in updates)]).astype(np.uint32)
    kernels.apply(
        memory[3:-3],
        gpu.cupy.asarray(words)[offset:],
        gpu.cupy.asarray(np.cumsum([0, *lengths]).astype(np.uint32)),
        gpu.cupy.asarray(np.array([step * quantum for _, step in updates], np.float32)),
    )
    after: NDArray[np.float32] = memory.get()
    assert (after[:3] == 77).all()
    assert (after[-3:] == 77).all()
    return after[3:-3]


def check(
    gpu: Backend, weights: int, updates: Sequence[Update], *, quantum: float = QUANTUM, offset: int = 0
) -> None:
    values = start(weights) * np.float32(quantum / QUANTUM)
    expected = values.copy()
    codec.apply_weights_together(expected, [(words, step * quantum) for words, step in updates])
    actual = applied_on_the_device(gpu, values, updates, quantum=quantum, offset=offset)
    assert actual.tobytes() == expected.tobytes()


def updates_of(seed: int, *, weights: int, densities: Sequence[float]) -> list[Update]:
    chance = np.random.default_rng(seed)
    return [
        (random_words(chance, weights=weights, density=density), int(chance.integers(1, 1000)))
        for density in densities
    ]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the backend stays
@given(data=st.data())
def test_any_updates_give_what_the_core_gives(gpu: Backend, data: st.DataObject) -> None:
    weights = data.draw(st.integers(1, 3000))
    densities = data.draw(st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.3, 1.0]), min_size=1, max_size=9))
    updates = updates_of(data.draw(st.integers(0, 2**32 - 1)), weights=weights, densities=densities)
    with schedule(
        data.draw(st.sampled_from(["forward", "reverse", "random"])), data.draw(st.integers(0, 999))
    ):
        check(gpu, weights, updates, offset=data.draw(st.integers(0, 3)))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 1023, 1024, 1025, 4099])
def test_every_number_of_words_around_that_of_a_block_is_applied_whole(gpu: Backend, count: int) -> None:
    words = uint32([index << 1 | index & 1 for index in range(count)])
    check(gpu, count, [(words, 3)])
    check(gpu, count, [(words[:1], 5), (words[1:], 7)], offset=1)


def test_updates_of_one_word_or_none_find_their_amounts(gpu: Backend) -> None:
    words = uint32([2 << 1, 2 << 1 | 1, 4 << 1, 0, 4 << 1, 1 << 1 | 1, 3 << 1, 3 << 1, 3 << 1, 3 << 1 | 1])
    none = words[:0]
    updates = [(words[i : i + 1], i + 1) for i in range(10)]
    check(gpu, 5, updates)
    check(
        gpu, 5, [(none, 1), updates[0], (none, 2), (none, 3), *updates[1:6], (none, 9), updates[7], (none, 4)]
    )
    check(gpu, 5, [(none, 1)])
    check(gpu, 5, [(none, 8)] * 300 + [(words, 7)] + [(none, 9)] * 300 + [(words, 1)])


def test_as_many_updates_as_a_mini_batch_may_bring(gpu: Backend) -> None:
    check(gpu, 2**20, updates_of(5, weights=2**20, densities=[1 / 850] * 64))
    check(gpu, 500, updates_of(6, weights=500, densities=[0.01] * codec.TOGETHER_MAX))


def test_the_smallest_quantum_and_the_largest_step_are_exact(gpu: Backend) -> None:
    """Where the device's atomics, which flush denormals, come closest to one."""
    words = uint32([0, 3, 4])
    check(gpu, 3, [(words, 1), (words ^ np.uint32(1), 1), (words, 1)], quantum=2.0**-30)
    check(gpu, 3, [(words, codec.MAGNITUDE_MAX)], quantum=1.0)


def test_an_index_outside_is_left_out(gpu: Backend) -> None:
    words = uint32([0, 3 << 1, 2**32 - 2, 2**31, 1 << 1])
    values = np.zeros(3, np.float32)
    expected = np.array([1.0, 1.0, 0.0], np.float32)
    actual = applied_on_the_device(gpu, values, [(words, 1)], quantum=1.0, offset=0)
    assert actual.tobytes() == expected.tobytes()


def test_other_arrays_are_refused(gpu: Backend) -> None:
    cupy = gpu.cupy
    kernels = gpu.load("kernels").Kernels()
    weights, words = cupy.zeros(4, np.float32), cupy.zeros(2, np.uint32)
    offsets, amounts = cupy.zeros(2, np.uint32), cupy.zeros(1, np.float32)

    def refused(what: str, *arrays: Any, kind: type[Exception] = ValueError) -> None:
        with pytest.raises(kind, match=what):
            kernels.apply(*arrays)

    refused("1 amounts need 2 offsets, they are 1", weights, words, offsets[:1], amounts)
    refused(
        "weights must be of float32; it is of int32",
        weights.view(np.int32),
        words,
        offsets,
        amounts,
        kind=TypeError,
    )
    refused(
        "words must be a CuPy array; it is of ndarray",
        weights,
        np.zeros(2, np.uint32),
        offsets,
        amounts,
        kind=TypeError,
    )
    refused("weights must be one-dimensional and contiguous", weights[::2], words, offsets, amounts)
    refused("weights must be one-dimensional", weights.reshape(2, 2), words, offsets, amounts)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("weights", [1, 255, 256, 257, 20_011])
def test_a_scaled_sum_is_added_as_on_the_host_and_denormals_stay(
    gpu: Backend, weights: int, order: str
) -> None:
    draw = np.random.default_rng(weights)
    values, numbers = (
        (draw.normal(size=weights) * 2.0 ** draw.integers(-148, 100, weights)).astype(np.float32)
        for _ in range(2)
    )
    numbers[::3] = -values[::3]
    factor = np.float32(1 / 3)
    memory = gpu.cupy.asarray(np.concatenate([values, np.full(3, 77, np.float32)]))
    with schedule(order, weights):
        gpu.load("kernels").Kernels().add_scaled(memory[:-3], gpu.cupy.asarray(numbers), factor)
    assert (
        memory.get().tobytes()
        == np.concatenate([values + numbers * factor, np.full(3, 77)]).astype(np.float32).tobytes()
    )
