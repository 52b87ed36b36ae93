"""The time to a target loss: the task's gradient, and a small run of each way."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks.targets import Task, Way
from benchmarks.targets.__main__ import crossing, reach


def test_the_gradient_is_that_of_the_loss() -> None:
    task, chance = Task(np.float64), np.random.default_rng(1)
    point, way = chance.normal(size=task.weights, scale=0.1), chance.normal(size=task.weights)
    rows = np.arange(200)
    _, gradient = task.loss_and_gradient(point, rows)
    losses = [task.loss_and_gradient(point + step * way, rows)[0] for step in (1e-6, -1e-6)]
    assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(float(gradient @ way), rel=1e-5)


def test_at_zero_all_states_are_as_likely() -> None:
    task = Task(np.float32)
    assert task.loss(np.zeros(task.weights, np.float32)) == pytest.approx(np.log(204), rel=1e-5)


@pytest.mark.parametrize(
    ("curve", "seconds"),
    [
        ([], None),
        ([(1.0, 3.0), (2.0, 2.5)], None),
        ([(1.0, 3.0), (2.0, 2.0), (3.0, 2.4)], 1.8),
        ([(4.0, 2.1)], 4.0),
    ],
)
def test_the_target_is_reached_between_two_looks(
    curve: list[tuple[float, float]], seconds: float | None
) -> None:
    assert crossing(curve, 2.2) == pytest.approx(seconds)


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "rate"),
    [(Way.LBFGS, 0.0), (Way.DOWNPOUR, 0.03), (Way.ASYNC, 0.1)],
    ids=["lbfgs", "downpour", "async"],
)
def test_two_nodes_reach_a_target(way: Way, rate: float) -> None:
    found = reach(
        Task(np.float32), way, rate, 2, argparse.Namespace(target=4.9, pace=5e-5, limit=120.0, spare=0.0)
    )
    assert found.seconds is not None
    assert found.loss <= 4.9
