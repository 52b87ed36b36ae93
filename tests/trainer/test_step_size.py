"""From tau to a step in quanta, and the controller that steers towards a density."""

import pytest

from p2psgd.trainer.recipe import Recipe, parse_recipe
from p2psgd.trainer.step_size import FACTOR_MAX, TAU_START, StepSize
from p2psgd.wire.codec import STEP_MAX

COMMON = {"name": "x", "data": "digits", "hidden": [], "batch": 1, "epochs": 1, "learning_rate": 0.5}


def recipe(**keys: float) -> Recipe:
    return parse_recipe({**COMMON, **keys}, where="recipe")


def test_a_weight_moves_by_learning_rate_times_tau_rounded_to_quanta() -> None:
    size = StepSize(recipe(tau=0.1, quantum_log2=-10), weights=100)
    assert size.step(0.5) == round(0.5 * 0.1 * 1024) == 51
    size.sent(90)
    assert size.step(0.5) == 51


def test_the_step_stays_between_one_and_the_limit() -> None:
    size = StepSize(recipe(tau=0.1, quantum_log2=-10), weights=100)
    assert size.step(1e-12) == 1
    assert size.step(0.0) == 1
    assert size.step(1e12) == STEP_MAX


def test_the_controller_reaches_the_density_from_both_sides() -> None:
    for truth in (0.0005, 3.0):  # the tau at which the made-up net sends the target
        size = StepSize(recipe(density=0.01), weights=100_000)
        assert size.tau == TAU_START
        for _ in range(200):
            size.sent(min(100_000, round(1000 * truth / size.tau)))
        assert size.tau == pytest.approx(truth, rel=0.02)


def test_the_controller_moves_by_bounded_factors_and_the_same_in_every_replay() -> None:
    size, replay = (StepSize(recipe(density=0.01), weights=100_000) for _ in range(2))
    for count in (0, 100_000, 0, 0, 1000, 7, 100_000):
        before = size.tau
        size.sent(count)
        replay.sent(count)
        assert 1 / FACTOR_MAX <= size.tau / before <= FACTOR_MAX
    assert size.tau == replay.tau
    for _ in range(10_000):
        size.sent(0)
    assert size.step(0.5) == 1


def test_a_tiny_net_has_a_target_of_at_least_one_index() -> None:
    size = StepSize(recipe(density=0.001), weights=10)
    size.sent(1)
    assert size.tau == TAU_START
