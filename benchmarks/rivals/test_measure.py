"""Two real hosts train for a moment; the cases themselves are run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rivals.cases import Case, Setting, Task
from benchmarks.rivals.measure import Outcome, measure
from benchmarks.rivals.processors import NoControlGroups
from benchmarks.rivals.tasks import GPT, SPEECH
from tests.torch import needed

__all__ = ["needed"]  # PyTorch, or this is skipped visibly


def run(task: Task, case: Case, setting: Setting, directory: Path) -> Outcome:
    try:
        return measure(task, case, setting, directory, hosts=2)
    except (NoControlGroups, OSError) as error:
        pytest.skip(f"no control groups here: {error}")


@pytest.mark.root
def test_two_hosts_train_each_its_share_and_the_links_tell_what_it_costs(tmp_path: Path) -> None:
    case = Case(SPEECH.ways["p2psgd"], 100, limit_s=6)  # the first two seconds are not counted
    outcome = run(SPEECH, case, {"rate": 0.15, "density": 0.01}, tmp_path)
    assert outcome.words == ""
    assert len(outcome.curve) >= 2
    assert outcome.curve[-1][2] < outcome.curve[0][2], "the loss falls"
    assert all(pace > 0 for pace in outcome.steps_per_s)
    # 8,000 indices to a peer, in about 9 bits: fewer or more while a density is looked for.
    assert 1_000 < outcome.step_bytes < 200_000
    assert outcome.computing is not None
    assert 0 < outcome.computing < 1


@pytest.mark.root
def test_gradients_of_several_mini_batches_are_sent_once_also_over_links_with_a_delay(tmp_path: Path) -> None:
    for limit_s in (8, 60):  # on a busy machine eight batches may take the first seconds
        case = Case(GPT.ways["ddp-8"], 1000, fault="delayed", limit_s=limit_s)
        place = tmp_path / str(limit_s)
        place.mkdir()
        outcome = run(GPT, case, {"rate": 0.002}, place)
        assert outcome.words == ""
        if len(outcome.curve) > 1:
            break
    assert outcome.curve[-1][2] < outcome.curve[0][2], "the loss falls"
    # Two hosts send their 1.9 MB of gradients each in one of eight mini-batches.
    assert outcome.step_bytes < 1_000_000
    assert outcome.computing is None, "it overlaps with sending"
