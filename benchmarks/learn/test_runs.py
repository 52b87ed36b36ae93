"""Every way really trains: a few batches of digits on two nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.learn.cases import TASKS, WAYS, Case, Way
from benchmarks.learn.launch import run
from tests.torch.needed import torch
from tests.wide import widely

assert torch.distributed.is_available()

# One of those that differ in a number alone.
HERE = {
    way.name.rstrip("0123456789"): way for way in WAYS.values() if "local_steps" not in way.options
}.values()
SHOWN = ("one", "p2psgd-slow")
FIRST = [way for way in HERE if way.name in SHOWN], [way for way in HERE if way.name not in SHOWN]


@pytest.mark.long
@pytest.mark.parametrize("way", widely(*FIRST), ids=lambda way: way.name)
def test_a_way_trains_and_counts_its_bytes(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "digits-cnn", replace(TASKS["digits-cnn"], batches=120))
    case = Case(task="digits-cnn", way=way.name, nodes=1 if way.alone else 2, seed=1, rate=None)
    found = run(case, 0.02)
    assert found.loss < 2.0  # chance is 2.3
    if way.method == "p2psgd-slow":  # one node in step and one at a quarter of the speed
        assert 60 < found.steps < 120
    else:
        assert found.steps == (120 if way.alone else 60)
    assert (found.sent_bytes > 0) != way.alone
