from __future__ import annotations

import pytest

from p2psgd.wire.codec import indices_max
from tests.torch.needed import p2psgd_torch

pytestmark = pytest.mark.long


def test_the_threshold_rises_while_the_updates_of_a_large_model_are_full() -> None:
    weights = 60_000_000  # of which 1 % are more than an update holds
    steps = p2psgd_torch.step_size.Steps({"weight": (0, weights)}, density=0.01, tau=None, quantum=2**-20)
    steps.restore(5.0, ())
    for _ in range(10):
        steps.sent({"weight": indices_max(weights)})
    assert steps.tau > 5.0
