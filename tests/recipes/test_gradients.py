"""Samples in, gradient out, and a loss that is none ends it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.trace import TraceEvents
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.recipes.datasets import load_dataset
from p2psgd.recipes.gradients import Gradients, check_loss
from p2psgd.recipes.model import initial_weights
from p2psgd.recipes.recipe import load_recipe
from p2psgd.recipes.telemetry import StepTimes
from tests.recipes.fake_link import FakeNet, as_link

RECIPE = load_recipe("digits")


def test_the_samples_of_the_positions_are_used_and_layers_shown_in_the_trace() -> None:
    dataset, trace = load_dataset("digits"), TraceEvents()
    link = FakeNet({"weights": np.zeros(1, np.float32)}, 1.0, 1).links[0]
    gradients = Gradients(RECIPE, dataset, StepTimes(as_link(link), trace))
    weights = np.concatenate([part.ravel() for part in initial_weights(gradients.shape, 1).values()])
    both = np.empty((3, gradients.shape.weights), np.float32)
    ready: list[int] = []
    for row, positions in zip(both, ([0], [1], [0, 1]), strict=True):
        loss = gradients.take(weights, np.array(positions), gradient=row, ready=ready.append)
        assert 0 < loss < 10
    assert np.allclose(both[2], (both[0] + both[1]) / 2, atol=1e-6)
    assert ready == [2, 1] * 3
    assert [event["name"] for event in trace.events[:4]] == [
        "load samples",
        "forward, then gradient of layer 2",
        "gradient of layer 1",
        "gradient",
    ]


def test_a_loss_that_is_none_ends_the_training_with_what_may_help() -> None:
    check_loss(2.5, RECIPE, steps=3, tau=0.03)
    with pytest.raises(UsageError, match=r"the loss is inf after 3 steps .* = 0\.1 and tau = 0\.03") as it:
        check_loss(float("inf"), RECIPE, steps=3, tau=0.03)
    assert it.value.exit_code is ExitCode.FAILED
    with pytest.raises(UsageError, match=r"with learning_rate = 0\.1: try a lower one"):
        check_loss(float("nan"), RECIPE, steps=3, tau=None)
