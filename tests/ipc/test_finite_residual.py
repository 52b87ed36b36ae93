"""What is not finite in a residual gets zero; what is finite stays, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.ipc.residual_segment import CHECKED_WEIGHTS, describe_unfinite, make_finite

EXTREMES = np.array([0.0, -0.0, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1.0, -1.0], np.float32)
NOT_FINITE = np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize("weights", [1, 8, CHECKED_WEIGHTS - 1, CHECKED_WEIGHTS, 2 * CHECKED_WEIGHTS + 3])
def test_a_finite_residual_stays_as_it_is(weights: int) -> None:
    residual = np.resize(EXTREMES, weights)
    before = residual.tobytes()
    assert make_finite(residual) == 0
    assert residual.tobytes() == before


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize(
    "places",
    [[0], [CHECKED_WEIGHTS - 1, CHECKED_WEIGHTS], [2 * CHECKED_WEIGHTS + 2], range(2 * CHECKED_WEIGHTS + 3)],
    ids=["first", "around a slice's end", "last", "all"],
)
def test_what_is_not_finite_gets_zero_and_is_counted(value: np.float32, places: list[int]) -> None:
    residual = np.resize(EXTREMES, 2 * CHECKED_WEIGHTS + 3)
    expected = residual.copy()
    residual[places] = value
    expected[places] = 0
    assert make_finite(residual) == len(places)
    assert residual.tobytes() == expected.tobytes()
    assert make_finite(residual) == 0


def test_the_alarm_says_how_much_where_zero_is_and_what_to_do() -> None:
    words = describe_unfinite(1234, 5_000_000, "the checkpoint")
    assert words.startswith(
        "the trainer's residual was NaN or infinite at 1,234 of 5,000,000 weights, and the checkpoint has"
        " zero there: "
    )
    assert "look in the training script" in words
