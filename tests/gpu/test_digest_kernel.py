"""Digests made on the device of the working copy are those of the replica's coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.wire import codec
from tests.gpu.backends import Backend, schedule


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("weights", [1, 31, 32, 33, 255, 256, 257, 10_007, 300_000])
def test_the_digest_is_the_cores(gpu: Backend, weights: int, order: str) -> None:
    chance = np.random.default_rng(weights)
    kernels = gpu.load("kernels").Kernels()
    coordinates = chance.integers(-(2**24), 2**24 + 1, weights).astype(np.int32)
    for quantum in (2.0**-20, 2.0**-30, 1.0):
        values = gpu.cupy.asarray((coordinates * quantum).astype(np.float32))
        key, start = int(chance.integers(0, 2**64, dtype=np.uint64)), int(chance.integers(0, 2**31 - weights))
        with schedule(order, weights):
            digest = kernels.digest(values, quantum=quantum, key=key, start=start)
        assert digest == codec.digest_coordinates(coordinates, key, start)


def test_digests_of_slices_add_up_and_nothing_has_none(gpu: Backend) -> None:
    kernels = gpu.load("kernels").Kernels()
    coordinates = np.arange(-500, 500, dtype=np.int32)
    values = gpu.cupy.asarray(coordinates.astype(np.float32))
    slices = [
        kernels.digest(values[begin:end], quantum=1.0, key=9, start=begin)
        for begin, end in ((0, 333), (333, 1000))
    ]
    assert sum(slices) % 2**64 == codec.digest_coordinates(coordinates, 9)
    assert kernels.digest(values[:0], quantum=1.0, key=9) == 0


def test_more_weights_than_a_round_of_all_blocks(gpu: Backend) -> None:
    weights = 1024 * 256 * 2 + 77
    coordinates = np.random.default_rng(1).integers(-1000, 1000, weights).astype(np.int32)
    values = gpu.cupy.asarray((coordinates * 2.0**-20).astype(np.float32))
    digest = gpu.load("kernels").Kernels().digest(values, quantum=2.0**-20, key=2**64 - 1)
    assert digest == codec.digest_coordinates(coordinates, 2**64 - 1)
