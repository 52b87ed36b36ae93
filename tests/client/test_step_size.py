"""From tau to a step in quanta, and the controller that steers towards a density."""

import pytest

from p2psgd.client.step_size import FACTOR_MAX, TAU_START, StepRule, StepSize
from p2psgd.recipes.gradients import StepSizes
from p2psgd.recipes.model import Activation, Shape
from p2psgd.recipes.recipe import Recipe, parse_recipe
from p2psgd.wire.codec import STEP_MAX, indices_max

QUANTUM = 2.0**-10
COMMON = {"name": "x", "data": "digits", "hidden": [8], "batch": 1, "epochs": 1, "learning_rate": 0.5}
TENSORS = Shape(inputs=20, hidden=(8,), classes=3, activation=Activation.RELU).tensors
NAMES = [name for name, _ in TENSORS]


def by_tau(tau: float, *, weights: int) -> StepSize:
    return StepSize(StepRule(("all",), tau=tau), weights, QUANTUM, of=weights)


def by_density(density: float, *, weights: int) -> StepSize:
    return StepSize(StepRule(("all",), density=density), weights, QUANTUM, of=weights)


def recipe(**keys: object) -> Recipe:
    return parse_recipe({**COMMON, "quantum_log2": -10, **keys}, where="recipe")


def counts(**by_name: int) -> dict[str, int]:
    return dict.fromkeys(NAMES, 0) | {name.replace("_", "."): count for name, count in by_name.items()}


def test_a_weight_moves_by_learning_rate_times_tau_rounded_to_quanta() -> None:
    size = by_tau(0.1, weights=100)
    assert size.step(0.5) == round(0.5 * 0.1 * 1024) == 51
    size.sent(90)
    assert size.step(0.5) == 51


def test_the_step_stays_between_one_and_the_limit() -> None:
    size = by_tau(0.1, weights=100)
    assert size.step(1e-12) == 1
    assert size.step(0.0) == 1
    assert size.step(1e12) == STEP_MAX


def test_the_controller_reaches_the_density_from_both_sides() -> None:
    for truth in (0.0005, 3.0):  # the tau at which the made-up net sends the target
        size = by_density(0.01, weights=100_000)
        assert size.tau == TAU_START
        for _ in range(200):
            size.sent(min(100_000, round(1000 * truth / size.tau)))
        assert size.tau == pytest.approx(truth, rel=0.02)


def test_the_controller_moves_by_bounded_factors_and_the_same_in_every_replay() -> None:
    size, replay = (by_density(0.01, weights=100_000) for _ in range(2))
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
    size = by_density(0.001, weights=10)
    size.sent(1)
    assert size.tau == TAU_START


def test_tau_rises_while_the_updates_of_a_large_net_are_full() -> None:
    weights = 60_000_000  # of which 1 % are more than an update holds
    size = by_density(0.01, weights=weights)
    size.sent(indices_max(weights))
    assert size.tau > TAU_START


def test_tau_rises_while_the_only_index_of_a_small_tensor_in_a_large_net_is_taken() -> None:
    size = StepSize(StepRule(("bias",), density=0.01), 204, QUANTUM, of=60_000_000)
    size.sent(1)  # of 204 weights, less than one in 262,144 of 60 million
    assert size.tau > TAU_START


def test_one_step_for_all_tensors_is_a_number() -> None:
    assert StepSizes(recipe(tau=0.1), TENSORS).step(0.5) == 51
    assert StepSizes(recipe(tau=0.1, tau_of={"*.bias": 0.1}), TENSORS).step(0.5) == 51


def test_different_steps_are_named_for_every_tensor() -> None:
    sizes = StepSizes(recipe(tau=0.1, tau_of={"*.bias": 0.2, "layer2.*": 0.4}), TENSORS)
    assert sizes.step(0.5) == {
        "layer1.weight": 51,
        "layer1.bias": 102,
        "layer2.weight": 205,
        "layer2.bias": 102,
    }
    assert sizes.taus == [0.1, 0.2, 0.4]
    assert sizes.step(1e-9) == 1  # where all have come down to one quantum


def test_a_density_counts_the_tensors_of_its_rule_only() -> None:
    sizes = StepSizes(recipe(tau=0.1, density_of={"layer1.*": 0.25}), TENSORS)
    target = (20 * 8 + 8) // 4
    sizes.sent(counts(layer1_weight=target - 2, layer1_bias=2, layer2_weight=1000))
    assert sizes.taus == [0.1, TAU_START]
    sizes.sent(counts(layer1_weight=2 * target))
    fixed, steered = sizes.taus
    assert fixed == 0.1
    assert steered == pytest.approx(TAU_START * 2**0.05, rel=0.01)


def test_two_patterns_are_steered_apart_even_with_one_density() -> None:
    sizes = StepSizes(recipe(tau=0.1, density_of={"layer1.weight": 0.1, "layer2.weight": 0.1}), TENSORS)
    sizes.sent(counts(layer1_weight=160))
    _, first, second = sizes.taus
    assert first > TAU_START > second
