"""A state of L-BFGS that travels through evaluations, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import p2psgd
from p2psgd.recipes.lbfgs import Lbfgs, Vector
from p2psgd.recipes.shared_state import SharedState, halves, join_halves, pack_rows, unpack_rows


def bowl(x: Vector) -> tuple[float, Vector]:
    scale = 3.0 ** np.arange(x.size)
    return float(np.sum(scale * (x - 1 / 3) ** 2)), 2 * scale * (x - 1 / 3)


def state_after(iterations: int, size: int) -> dict[str, Any]:
    method = Lbfgs(bowl, np.zeros(size))
    for _ in range(iterations):
        method.iterate()
    return method.state


def is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes() for name in one
    )


def test_halves_keep_all_bits() -> None:
    numbers = np.array([0.0, -0.0, 1 / 3, -1e300, 5e-324, np.inf, np.nan])
    assert join_halves(*halves(numbers)).tobytes() == numbers.tobytes()


@pytest.mark.parametrize("size", [3, 5, 8])
@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_rows_are_what_the_state_was(size: int, iterations: int) -> None:
    state = state_after(iterations, size)
    rows = pack_rows(state, size)
    assert rows.shape[1] == size
    assert is_same(unpack_rows(rows), state)


def test_evaluations_hand_a_state_out_and_report_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_after(4, 7)
    reported: list[Any] = []
    with p2psgd.attach(np.zeros(7, np.float32), mode="closure", alone=True) as link:
        monkeypatch.setattr(link._client, "tell", reported.append)
        found = SharedState(link, state, np.zeros(7)).fetch()
        assert not reported
        link.evaluate(lambda x, part: (1.0, x), np.zeros(7), 3)
        assert [report.loss for report in reported] == [3.0]
    assert found is not None
    assert is_same(found, state)


def test_without_a_state_they_hand_none_out() -> None:
    with p2psgd.attach(np.zeros(7, np.float32), mode="closure", alone=True) as link:
        assert SharedState(link, None, np.zeros(7)).fetch() is None
