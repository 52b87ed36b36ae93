"""When a node's trainer stands still, so that its state is not "training"."""

from __future__ import annotations

import pytest

from p2psgd.observe.status import RingStatus
from tests.observe.statuses import ring

OTHERS = "round 1235 has waited for 3.1 s for node-2's trainer"


@pytest.mark.parametrize(
    "changes",
    [
        {"contributed": True},  # and the round waits for others
        {"contributed": False, "running": False},  # it has not been asked for its share
    ],
)
def test_a_trainer_that_waits_for_others_stands_still(changes: dict[str, bool]) -> None:
    assert RingStatus(**ring(waiting_for=OTHERS, since_s=3.1, **changes)).stands_still


@pytest.mark.parametrize(
    "changes",
    [
        {"contributed": False},  # the others wait for it
        {"active": False},  # there is none
        {"since_s": 0.9},  # that is no news
        {"waiting_for": ""},
    ],
)
def test_one_that_computes_does_not(changes: dict[str, object]) -> None:
    assert not RingStatus(**ring(**{"waiting_for": OTHERS, "since_s": 3.1, **changes})).stands_still
