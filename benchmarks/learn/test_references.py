"""The exchanges of DiLoCo and SparseLoCo, and the bytes of all ways, against what is computed by hand."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.torch.needed import torch

pytestmark = pytest.mark.long  # PyTorch

# After PyTorch, without which this module is skipped.
diloco: Any = importlib.import_module("benchmarks.learn.diloco")
sparseloco: Any = importlib.import_module("benchmarks.learn.sparseloco")
ways: Any = importlib.import_module("benchmarks.learn.ways")


def test_dilocos_outer_step_is_that_of_sgd_with_nesterov_momentum() -> None:
    begin = torch.randn(50, generator=torch.Generator().manual_seed(1))
    weights, momentum = begin.clone(), torch.zeros(50)
    parameter = torch.nn.Parameter(begin.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for seed in range(5):
        gradient = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        diloco.outer_step(weights, gradient, momentum)
        parameter.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weights, parameter.detach())


def test_a_message_takes_the_largest_entries_of_the_decayed_error_and_leaves_the_rest() -> None:
    # Two tensors of four entries; a density of a half sends two entries of each.
    error = torch.tensor([1.0, 0.0, 0.0, -2.0, 0.0, 0.0, 4.0, 0.0])
    change = torch.tensor([0.05, 3.0, -1.0, -0.1, 0.1, -0.2, 0.2, 0.3])
    # Decayed and added: [1, 3, -1, -2 | 0.1, -0.2, 4, 0.3]
    indices, values = sparseloco.compress(error, change, [4, 4], 0.5)
    sent = torch.zeros(8)
    sent[indices] = values
    torch.testing.assert_close(sent, torch.tensor([0.0, 3.0, 0.0, -2.0, 0.0, 0.0, 4.0, 0.3]))
    torch.testing.assert_close(error, torch.tensor([1.0, 0.0, -1.0, 0.0, 0.1, -0.2, 0.0, 0.0]))


def test_what_quantizing_leaves_out_stays_in_the_error() -> None:
    error = torch.zeros(4)
    change = torch.tensor([1.0, -2.0, 6.0, -8.0])  # the mean magnitude is 4.25
    indices, values = sparseloco.compress(error, change, [4], 1.0)
    sent = torch.zeros(4)
    sent[indices] = values
    torch.testing.assert_close(sent, torch.tensor([1.5, -1.5, 7.0, -7.0]))
    torch.testing.assert_close(error, torch.tensor([-0.5, -0.5, -1.0, -1.0]))


def test_equal_magnitudes_are_sent_exactly() -> None:
    values = torch.tensor([-2.0, 2.0, 2.0])
    torch.testing.assert_close(sparseloco.quantize(values), values)


def test_each_chunk_sends_its_own_largest_entries() -> None:
    tensor = torch.zeros(sparseloco.CHUNK + 64)
    tensor[: sparseloco.CHUNK] = 100.0
    tensor[sparseloco.CHUNK + 5], tensor[sparseloco.CHUNK + 9] = -1.0, 0.5
    places = sparseloco.largest(tensor, 1 / 32)
    assert len(places) == sparseloco.CHUNK // 32 + 2
    assert set(places[-2:].tolist()) == {sparseloco.CHUNK + 5, sparseloco.CHUNK + 9}


def test_bytes_are_those_of_the_formulas() -> None:
    # Around a ring of four, three quarters of the entries pass each node twice, in 4 bytes each.
    assert ways.allreduce_bytes(1000, 4) == 6000
    assert ways.allreduce_bytes(1000, 1) == 0
    # 128 + 2 of the first tensor's entries and 1 of the second's in 14 bits each; two levels for each tensor.
    assert sparseloco.message_bytes([4096 + 64, 3], 1 / 32) == (131 * 14 + 2 * 64) / 8
