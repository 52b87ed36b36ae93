"""Parts of a step: of one node and of all, in figures and words."""

from typing import Any

import pytest

from p2psgd.observe.status import TrainerStatus
from p2psgd.observe.text import DAEMONS, PARTS, describe_steps, steps_words
from tests.observe import statuses


def split(**changes: Any) -> TrainerStatus:
    return TrainerStatus(**statuses.split(**changes))


def test_the_four_parts_are_the_whole_and_the_daemons_beside_them() -> None:
    steps = describe_steps([split(daemon_adding_s=2.0)])
    assert steps == {
        "steps": 1_000,
        "step_ms": 10.0,
        "computing": 0.6,
        "waiting": 0.3,
        "adding": 0.03,
        "sending": 0.07,
        "daemon_adding": 0.2,
        "daemon_sending": 0.0,
    }
    assert sum(steps[part] for part in PARTS) == pytest.approx(1)


def test_several_nodes_make_one_split_by_their_time() -> None:
    slow = split(timed_steps=500, computing_s=30.0, waiting_s=0.0, adding_s=0.0, sending_s=0.0)
    steps = describe_steps([split(), slow, TrainerStatus()])
    assert steps is not None
    assert steps["steps"] == 1_500
    assert steps["step_ms"] == pytest.approx(1000 * 40 / 1_500, abs=1e-3)
    assert (steps["computing"], steps["waiting"]) == (0.9, 0.075)


def test_before_the_first_step_there_is_none() -> None:
    assert describe_steps([]) is None
    assert describe_steps([split(timed_steps=0), TrainerStatus()]) is None


def test_the_words_name_the_daemons_only_if_they_did_something() -> None:
    steps = describe_steps([split()])
    assert steps is not None
    assert steps_words(steps) == "10 ms: computing 60 %, waiting 30 %, adding 3 %, sending 7 %"
    steps = {**steps, "step_ms": 1.234, **dict.fromkeys(DAEMONS, 0.25)}
    assert steps_words(steps) == (
        "1.2 ms: computing 60 %, waiting 30 %, adding 3 %, sending 7 %; "
        "meanwhile in the daemon: adding 25 %, sending 25 %"
    )
