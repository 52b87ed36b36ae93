"""The time to a target loss: when it was reached, and a small run of each way."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.targets import SHAPE, Way
from benchmarks.targets.__main__ import crossing, loss_of, reach
from tests.wide import widely


def test_at_zero_all_states_are_as_likely(tmp_path: Path) -> None:
    np.save(tmp_path / "zero.npy", np.zeros(SHAPE.weights))
    assert loss_of(tmp_path / "zero.npy") == pytest.approx(np.log(204), rel=1e-5)


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
    widely([(Way.LBFGS, 0.0)], [(Way.DOWNPOUR, 0.03), (Way.ASYNC, 0.1)]),
    ids=["lbfgs", "downpour", "async"],
)
def test_two_nodes_reach_a_target(way: Way, rate: float) -> None:
    found = reach(way, rate, 2, argparse.Namespace(target=4.9, pace=5e-5, limit=120.0, spare=0.0))
    assert found.seconds is not None
    assert found.loss <= 4.9
