"""The threshold leaves as many weights above it as the density asks for, from the first send on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from p2psgd.ipc.layout import send_indices_max
from p2psgd.wire.codec import MAGNITUDE_MAX
from tests.torch.needed import p2psgd_torch

pytestmark = pytest.mark.long

QUANTUM = 2.0**-20
SAMPLE: int = p2psgd_torch.step_size.SAMPLE


def make_steps(
    *sizes: int, owners: Any = None, density: float | None = None, tau: float | None = None, **options: Any
) -> Any:
    ends = np.cumsum(sizes).tolist()
    ranges = {f"p{begin}": (begin, end) for begin, end in zip([0, *ends], ends, strict=False)}
    return p2psgd_torch.step_size.Steps(ranges, owners, density=density, tau=tau, quantum=QUANTUM, **options)


def send(steps: Any, delta: Any, residual: Any, rate: float) -> int:
    """Send what exceeds the threshold, as a link does; return the number of indices."""
    threshold = steps.take(delta, residual, [rate]) * QUANTUM
    residual += delta
    sent = abs(residual) > threshold
    residual[sent] -= np.float32(threshold) * np.sign(residual[sent])
    steps.sent()
    return int(sent.sum())


@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("weights", [20_000, 3 * SAMPLE])
def test_each_send_has_the_density_from_the_first_on(density: float, weights: int) -> None:
    random = np.random.default_rng(1)
    steps, residual = make_steps(weights, density=density), np.zeros(weights, np.float32)
    drift = random.standard_normal(weights)
    wanted, counts = density * weights, []
    for _ in range(60):
        delta = (0.001 * (drift + random.standard_normal(weights))).astype(np.float32)
        counts.append(send(steps, delta, residual, 0.001))
    assert wanted / 2 < min(counts)
    assert max(counts) < 2 * wanted
    assert np.mean(counts) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_rate_that_falls_sends_no_more_at_once(*, shrinks: bool) -> None:
    random = np.random.default_rng(1)
    steps, residual = make_steps(1000, density=0.01, shrinks=shrinks), np.zeros(1000, np.float32)
    for number in range(200):
        rate = 0.1 if number < 100 else 0.01
        count = send(steps, (rate * random.standard_normal(1000)).astype(np.float32), residual, rate)
        assert 5 <= count <= 20


def test_a_sample_sees_every_column_of_a_matrix() -> None:
    columns, rows = 64, 6400  # were every sixth weight taken, an even stride would see half of them
    steps = make_steps(columns * rows, density=0.01)
    residual = np.zeros(columns * rows, np.float32)
    for number in range(10):
        delta = np.zeros((rows, columns), np.float32)
        delta[:, number] = np.linspace(0.1, 0.2, rows)
        assert send(steps, delta.ravel(), residual, 1.0) == pytest.approx(columns * rows / 100, rel=0.5)
        residual[:] = 0


def test_each_parameter_has_the_rate_of_its_group() -> None:
    steps = make_steps(100, 100, density=0.1)
    delta = np.concatenate([np.linspace(0.1, 1, 100), np.linspace(0.01, 0.1, 100)]).astype(np.float32)
    thresholds = steps.take(delta, np.zeros(200, np.float32), [1.0, 0.1])
    assert thresholds["p0"] == pytest.approx(10 * thresholds["p100"], rel=1e-3)
    for begin, threshold in ((0, thresholds["p0"]), (100, thresholds["p100"])):
        assert (delta[begin : begin + 100] > threshold * QUANTUM).sum() in {9, 10, 11}


def test_where_fewer_weights_change_than_the_density_asks_for_the_larger_ones_are_sent() -> None:
    steps, delta = make_steps(1000, density=0.1), np.zeros(1000, np.float32)
    delta[:4] = [0.1, -0.2, 0.3, 0.001]
    assert send(steps, delta, np.zeros(1000, np.float32), 1.0) == 3
    assert send(steps, np.zeros(1000, np.float32), np.zeros(1000, np.float32), 1.0) == 0


def test_a_model_of_one_weight_sends_it() -> None:
    assert send(make_steps(1, density=0.01), np.ones(1, np.float32), np.zeros(1, np.float32), 1.0) == 1


def test_of_a_change_that_is_not_finite_nothing_is_asked() -> None:
    delta = np.full(100, np.nan, np.float32)
    assert make_steps(100, density=0.1).take(delta, np.zeros(100, np.float32), [1.0]) == MAGNITUDE_MAX


def test_a_large_model_is_sent_to_half_of_what_a_send_holds() -> None:
    weights = 20_000_000
    random = np.random.default_rng(1)
    delta = 0.01 * random.standard_normal(weights, np.float32)
    count = send(make_steps(weights, density=0.1), delta, np.zeros(weights, np.float32), 1.0)
    assert count == pytest.approx(send_indices_max(weights) / 2, rel=0.1)


def test_a_fixed_tau_follows_the_rate_alone() -> None:
    steps, delta = make_steps(10, tau=5.0), np.ones(10, np.float32)
    assert steps.take(delta, delta, [0.1]) == round(0.5 / QUANTUM)
    assert steps.take(delta, delta, [0.01]) == round(0.05 / QUANTUM)


def test_after_a_first_step_that_moves_all_weights_alike_they_are_not_sent_all_at_once() -> None:
    random = np.random.default_rng(1)
    steps, residual = make_steps(1000, density=0.01), np.zeros(1000, np.float32)
    signs = np.sign(random.standard_normal(1000))
    for _ in range(10):
        assert send(steps, (0.0012345 * signs).astype(np.float32), residual, 1e-3) <= 10
        signs[:100] = np.sign(random.standard_normal(100))


def test_each_optimizer_sends_its_own_part_however_far_its_rate_moves_a_weight() -> None:
    """Muon moves a weight by a tenth of what Adam does at the same rate."""
    random = np.random.default_rng(1)
    sizes = [3 * SAMPLE, 5_000, 2 * SAMPLE, 3_000]  # the first optimizer has the first and the third
    steps = make_steps(*sizes, owners=[0, 1, 0, 1], density=0.01)
    scale = np.repeat([0.1, 1.0, 0.1, 1.0], sizes)
    first = np.repeat([True, False, True, False], sizes)
    residual = np.zeros(sum(sizes), np.float32)
    sent = np.zeros(sum(sizes), np.int64)
    for _ in range(40):
        residual += (0.001 * scale * random.standard_normal(sum(sizes))).astype(np.float32)
        threshold = steps.take(np.zeros_like(residual), residual, [0.001, 0.001, 0.002, 0.002])
        moved = np.repeat(np.array(list(threshold.values())) * np.float32(QUANTUM), sizes)
        above = abs(residual) > moved
        residual[above] -= (moved * np.sign(residual))[above]
        sent += above
        steps.sent()
    for its in (first, ~first):
        assert sent[its].mean() / 40 == pytest.approx(0.01, rel=0.15)
