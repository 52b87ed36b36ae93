"""Two real hosts train for a moment; the cases themselves are run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rivals import WAYS, Case
from benchmarks.rivals.measure import measure
from benchmarks.rivals.processors import NoControlGroups
from tests.torch import needed

__all__ = ["needed"]  # PyTorch, or this is skipped visibly


@pytest.mark.root
def test_two_hosts_train_each_its_share_and_the_links_tell_what_it_costs(tmp_path: Path) -> None:
    case = Case(WAYS["p2psgd"], 100, limit_s=6)  # the first two seconds are not counted
    try:
        outcome = measure(case, {"rate": 0.15, "density": 0.01}, tmp_path, hosts=2)
    except (NoControlGroups, OSError) as error:
        pytest.skip(f"no control groups here: {error}")
    assert outcome.words == ""
    assert len(outcome.curve) >= 2
    assert outcome.curve[-1][2] < outcome.curve[0][2], "the loss falls"
    assert all(pace > 0 for pace in outcome.steps_per_s)
    # 8,000 indices to a peer, in about 9 bits: fewer or more while a density is looked for.
    assert 1_000 < outcome.step_bytes < 200_000
