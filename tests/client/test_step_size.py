"""From tau to a step in quanta, and the controller that steers towards a density."""

import pytest

from p2psgd.client.step_size import FACTOR_MAX, TAU_START, StepSize
from p2psgd.ipc.layout import send_indices_max
from p2psgd.wire.codec import MAGNITUDE_MAX

QUANTUM = 2.0**-10


def by_tau(tau: float, *, weights: int) -> StepSize:
    return StepSize(weights, QUANTUM, tau=tau)


def by_density(density: float, *, weights: int) -> StepSize:
    return StepSize(weights, QUANTUM, density=density)


def test_a_weight_moves_by_learning_rate_times_tau_rounded_to_quanta() -> None:
    size = by_tau(0.1, weights=100)
    assert size.step(0.5) == round(0.5 * 0.1 * 1024) == 51
    size.sent(90)
    assert size.step(0.5) == 51


def test_the_step_stays_between_one_and_the_limit() -> None:
    size = by_tau(0.1, weights=100)
    assert size.step(1e-12) == 1
    assert size.step(0.0) == 1
    assert size.step(1e12) == MAGNITUDE_MAX


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


def test_tau_rises_while_the_sends_of_a_large_net_are_full() -> None:
    weights = 60_000_000
    size = by_density(0.1, weights=weights)  # more than a send holds
    assert size.density == 1 / 32
    size.sent(send_indices_max(weights))
    assert size.tau > TAU_START


def test_a_large_net_has_the_density_that_it_was_given() -> None:
    for weights in (13_000_000, 124_000_000, 2**31):
        assert by_density(0.01, weights=weights).density == 0.01
