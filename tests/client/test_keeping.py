"""What a trainer packs for its daemon to keep."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.client.checkpoint import Keeping
from p2psgd.ipc import script_state
from p2psgd.ipc.script_state import EVALUATED, EVALUATION, TRAINED, read_state

NONE: Any = None


def kept(keeping: Keeping) -> dict[str, Any] | None:
    memories = keeping.pack()
    state = [dict(read_state(memory)) for memory in memories]
    for memory in memories:
        os.close(memory)
    return state[0] if state else None


@pytest.fixture
def keeping() -> Keeping:
    return Keeping(NONE, NONE, NONE)


def test_without_state_and_evaluation_nothing_is_kept(keeping: Keeping) -> None:
    assert kept(keeping) is None


def test_the_last_point_is_kept_beside_the_state_of_the_script(keeping: Keeping) -> None:
    keeping.evaluated = 7, np.arange(3.0)
    assert (state := kept(keeping)) is not None
    assert state[EVALUATION] == 7
    assert state[EVALUATED].tolist() == [0, 1, 2]
    keeping.make_state = lambda: {"mine": 1}
    assert (state := kept(keeping)) is not None
    assert sorted(state) == [EVALUATED, EVALUATION, "mine"]


def test_trained_weights_of_the_script_are_kept_alone(keeping: Keeping) -> None:
    keeping.evaluated = 7, np.arange(3.0)
    keeping.make_state = lambda: {TRAINED: np.zeros(3)}
    assert list(kept(keeping) or {}) == [TRAINED]


def test_a_point_without_room_is_left_out(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_state, "STATE_BYTES_MAX", 1000)
    keeping.evaluated = 7, np.zeros(200)
    assert kept(keeping) is None
    keeping.make_state = lambda: {"mine": bytes(500)}
    assert list(kept(keeping) or {}) == ["mine"]
    keeping.make_state = lambda: {"mine": bytes(2000)}
    with pytest.raises(TrainerError, match="at most 1000 are possible"):
        kept(keeping)
