"""The state of a script that a trainer gives its daemon, with the point of the last evaluation."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.client.checkpoint import Keeping
from p2psgd.ipc import script_state
from p2psgd.ipc.script_state import ENDED, EVALUATED, TRAINED, read_state

NONE: Any = None
WEIGHTS = 200
POINT = np.arange(float(WEIGHTS))
COMPUTE: Any = SimpleNamespace(weights=np.zeros(WEIGHTS, np.float32))


def kept(keeping: Keeping) -> dict[str, Any] | None:
    memories = keeping.pack()
    state = [dict(read_state(memory)) for memory in memories]
    for memory in memories:
        os.close(memory)
    return state[0] if state else None


def evaluated(keeping: Keeping, number: int) -> None:
    keeping.evaluations = number
    keeping.note_point(POINT)


def whole(keeping: Keeping) -> dict[str, Any]:
    state = kept(keeping)
    assert state is not None
    return state


@pytest.fixture
def keeping() -> Keeping:
    return Keeping(NONE, NONE, COMPUTE)


def test_without_state_and_evaluation_nothing_is_kept(keeping: Keeping) -> None:
    assert kept(keeping) is None


def test_the_last_point_is_kept_beside_the_state_of_the_script(keeping: Keeping) -> None:
    for number, point in ((6, POINT - 1), (7, POINT.reshape(2, -1).copy())):
        keeping.evaluations = number
        keeping.note_point(point)
    point[:] = 0.0  # the script goes on with its array
    state = whole(keeping)
    assert state[ENDED] == "the point of evaluation 7"
    np.testing.assert_array_equal(state[EVALUATED], POINT)
    keeping.make_state = lambda: {"mine": 1}
    assert sorted(kept(keeping) or {}) == sorted([ENDED, EVALUATED, "mine"])


def test_trained_weights_of_the_script_are_kept_in_place_of_the_point(keeping: Keeping) -> None:
    evaluated(keeping, 7)
    keeping.make_state = lambda: {TRAINED: POINT.reshape(-1, 2)}
    state = whole(keeping)
    assert sorted(state) == sorted([ENDED, TRAINED])
    assert state[ENDED] == "weights of the script's own after evaluation 7"


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (POINT[:10], "one for each of the 200 weights; it is float64 (10,)"),
        (np.zeros(200, np.int64), "it is int64 (200,)"),
        (7.0, "it is float"),
    ],
)
def test_trained_weights_that_are_not_those_of_the_run_are_refused(
    keeping: Keeping, trained: Any, words: str
) -> None:
    with pytest.raises(TrainerError) as caught:
        keeping.begin(lambda: {TRAINED: trained})
    assert words in str(caught.value)
    keeping.make_state = lambda: {TRAINED: trained}
    with pytest.raises(TrainerError, match="must be an array of floats"):
        keeping.pack()


def test_a_point_without_room_is_left_out(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_state, "STATE_BYTES_MAX", 1000)
    evaluated(keeping, 7)
    keeping.make_state = lambda: {"mine": bytes(500)}
    assert list(kept(keeping) or {}) == ["mine"]
    keeping.make_state = lambda: {"mine": bytes(2000)}
    with pytest.raises(TrainerError, match="at most 1000 are possible"):
        kept(keeping)


def test_a_script_that_ends_with_an_error_leaves_its_last_state_as_it_was(keeping: Keeping) -> None:
    keeping.make_state = lambda: {"mine": 1}
    evaluated(keeping, 7)
    keeping.break_off()
    assert kept(keeping) is None


def test_one_that_keeps_no_state_leaves_its_last_point(keeping: Keeping) -> None:
    evaluated(keeping, 7)
    keeping.break_off()
    state = whole(keeping)
    assert state[ENDED] == "the point of evaluation 7"


@pytest.fixture
def restored() -> Keeping:
    return Keeping(NONE, NONE, COMPUTE, restored=True)


def test_the_state_of_the_former_trainer_stays_until_the_script_says_what_to_keep(restored: Keeping) -> None:
    evaluated(restored, 2)
    assert kept(restored) is None
    restored.begin(lambda: {"mine": 1})
    assert sorted(whole(restored)) == sorted([ENDED, EVALUATED, "mine"])


def test_it_stays_after_an_error_and_not_after_a_script_that_ends_without_keeping(restored: Keeping) -> None:
    evaluated(restored, 2)
    memories = restored.pack(ends=True)
    assert memories
    for memory in memories:
        os.close(memory)
    restored.break_off()
    assert restored.pack(ends=True) == []


def test_what_is_no_dict_any_more_is_refused(keeping: Keeping) -> None:
    keeping.make_state = lambda: NONE
    with pytest.raises(TrainerError, match="must be a dict"):
        keeping.pack()
