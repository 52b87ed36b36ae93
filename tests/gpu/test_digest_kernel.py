"""The digest that the device makes of weights is that of their coordinates, and no changed bit escapes it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.client.compute import NO_COORDINATE, coordinates_of
from p2psgd.wire import codec
from tests.gpu.backends import Backend, schedule

QUANTUM_LOG2 = -20
KEY = 2**64 - 59


def digest_there(
    gpu: Backend, values: NDArray[np.float32], quantum_log2: int | None = QUANTUM_LOG2, key: int = KEY
) -> int:
    kernels = gpu.load("kernels").Kernels()
    digest: int = kernels.digest(gpu.cupy.asarray(values), quantum_log2=quantum_log2, key=key)
    return digest


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("weights", [1, 31, 32, 33, 255, 256, 257, 10_007, 300_000])
def test_the_digest_is_that_of_the_coordinates(gpu: Backend, weights: int, order: str) -> None:
    chance = np.random.default_rng(weights)
    coordinates = chance.integers(-(2**24), 2**24 + 1, weights).astype(np.int32)
    coordinates[::5] //= 2**20
    for quantum_log2 in (-20, -30, 0):
        values = (coordinates * 2.0**quantum_log2).astype(np.float32)
        key = int(chance.integers(0, 2**64, dtype=np.uint64))
        with schedule(order, weights):
            digest = digest_there(gpu, values, quantum_log2, key)
        assert digest == codec.digest_coordinates(coordinates, key)


def test_more_weights_than_a_round_of_all_blocks(gpu: Backend) -> None:
    weights = 1024 * 256 * 2 + 77
    coordinates = np.random.default_rng(1).integers(-1000, 1000, weights).astype(np.int32)
    values = (coordinates * 2.0**QUANTUM_LOG2).astype(np.float32)
    assert digest_there(gpu, values) == codec.digest_coordinates(coordinates, KEY)


def test_in_a_dense_ring_the_digest_is_that_of_the_bits_whatever_they_are(gpu: Backend) -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 5000, dtype=np.uint32)
    bits[:4] = 0x80000000, 1, 0x7F800000, 0x7FC00001
    assert digest_there(gpu, bits.view(np.float32), None) == codec.digest_coordinates(
        bits.view(np.int32), KEY
    )


@pytest.mark.parametrize("quantum_log2", [QUANTUM_LOG2, -30, 0, None])
@pytest.mark.parametrize("coordinate", [0, 1, -1, 3, 12_345, 2**24, -(2**24)])
def test_every_single_bit_that_changes_in_a_weight_changes_the_digest(
    gpu: Backend, quantum_log2: int | None, coordinate: int
) -> None:
    """Above the quantum and below it, sign and exponent too; those of zero make denormals."""
    values = np.full(40, coordinate * 2.0 ** (quantum_log2 or 0), np.float32)
    right = digest_there(gpu, values, quantum_log2)
    wrong = []
    for bit in range(32):
        changed = values.copy()
        changed.view(np.uint32)[7] ^= np.uint32(1 << bit)
        wrong.append(digest_there(gpu, changed, quantum_log2))
    assert right not in wrong


def test_what_is_no_multiple_of_the_quantum_counts_as_on_the_host(gpu: Backend) -> None:
    quantum = 2.0**QUANTUM_LOG2
    values = np.array([0.5, -1.5, np.nan, np.inf, -np.inf, -0.0, 1e-40, 1e38], np.float32)
    values[:2] *= np.float32(quantum)
    bits = np.random.default_rng(3).integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([values, bits, np.array([77 * quantum], np.float32)])
    coordinates = coordinates_of(values, quantum)
    assert (coordinates[:8] == NO_COORDINATE).all()
    assert coordinates[-1] == 77
    assert digest_there(gpu, values) == codec.digest_coordinates(coordinates, KEY)


def test_other_arrays_are_refused(gpu: Backend) -> None:
    kernels = gpu.load("kernels").Kernels()
    with pytest.raises(TypeError, match="weights must be of float32; it is of int32"):
        kernels.digest(gpu.cupy.zeros(4, np.int32), quantum_log2=0, key=1)
    with pytest.raises(ValueError, match="weights must be one-dimensional and contiguous"):
        kernels.digest(gpu.cupy.zeros(4, np.float32)[::2], quantum_log2=0, key=1)
