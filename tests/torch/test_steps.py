from __future__ import annotations

import numpy as np
import pytest

from p2psgd.ipc.layout import send_indices_max
from tests.torch.needed import p2psgd_torch

pytestmark = pytest.mark.long


def test_the_threshold_rises_while_the_sends_of_a_large_model_are_full() -> None:
    weights = 60_000_000
    steps = p2psgd_torch.step_size.Steps({"weight": (0, weights)}, density=0.1, tau=None, quantum=2**-20)
    steps.restore(5.0, ())
    for _ in range(10):
        steps.sent({"weight": send_indices_max(weights)})
    assert steps.tau > 5.0


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_rate_that_falls_sends_no_more_at_once(*, shrinks: bool) -> None:
    random = np.random.default_rng(1)
    steps = p2psgd_torch.step_size.Steps(
        {"weight": (0, 1000)}, density=0.01, tau=None, quantum=2**-20, shrinks=shrinks
    )
    residual, counts = np.zeros(1000, np.float32), []
    for number in range(600):
        rate = 0.1 if number < 500 else 0.01
        delta = (rate * random.standard_normal(1000)).astype(np.float32)
        threshold = steps.take(delta, residual, [rate]) * 2.0**-20
        residual += delta
        sent = abs(residual) > threshold
        residual[sent] -= np.float32(threshold) * np.sign(residual[sent])
        steps.sent({"weight": int(sent.sum())})
        counts.append(int(sent.sum()))
    assert 5 < np.mean(counts[400:500]) < 20
    assert max(counts[500:]) < 60
    assert 5 < np.mean(counts[570:]) < 20
