"""Which actors begin a run, and which are given up, by the states that they find: the driver without Ray."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.observe.status import NodeStatus
from p2psgd.ray import driver as module
from p2psgd.ray.node import Job, Look

OURS, OTHER = 0xA, 0xB
UNASKED: Any = SimpleNamespace(requested=False)


class Driver(module._Driver):
    """A driver of four actors; `arrives` is called in each turn, and may let it see some of them."""

    def __init__(self, place: Path, arrives: Callable[[Driver, int], None] | None = None) -> None:
        self.killed: list[str] = []
        ray: Any = SimpleNamespace(kill=lambda handle, no_restart: self.killed.append(handle))
        job = Job(
            run="a", call="1", script=b"", script_name="", arguments=(), state=None, failure_timeout_s=5.0
        )
        super().__init__(ray, job, low=2, options={}, progress=None, place=place, goes_on=True)
        self._arrives, self._turns = arrives, itertools.count()
        self._actors = [module._Actor(number, f"actor {number}", object()) for number in range(4)]

    def sees(self, number: int, cluster_id: int | None) -> None:
        self._actors[number].look = Look(
            incarnation="1",
            machine=f"m{number}",
            address="",
            state=f"/s{number}",
            node=None,
            cluster_id=cluster_id,
        )

    def runs(self, number: int, cluster_id: int | None) -> None:
        """Let a node of this actor answer: as a member of a run, or of none yet."""
        self.sees(number, None)
        view: Any = None if cluster_id is None else SimpleNamespace(number=3, cluster_id=f"{cluster_id:#x}")
        status = NodeStatus(node=f"n{number}").model_copy(update={"view": view})
        node = self._actors[number].node = module._Node(f"n{number}", number, status)
        self._nodes[number + 10 * len(self._nodes)] = node

    def _turn(self, phase: str) -> None:
        assert self._arrives is not None
        self._arrives(self, next(self._turns))


def founders(driver: Driver) -> list[int]:
    driver._gather(UNASKED, 60)
    return [actor.number for actor in driver._founders]


def test_a_run_that_goes_on_is_begun_by_the_actors_that_have_its_states_though_they_come_later(
    tmp_path: Path,
) -> None:
    def arrives(driver: Driver, turn: int) -> None:
        driver.sees(turn, OURS if turn >= 2 else None)

    assert founders(Driver(tmp_path, arrives)) == [2, 3]


def test_it_is_begun_by_enough_states_of_one_run_in_whichever_order_states_come(
    tmp_path: Path,
) -> None:
    def arrives(driver: Driver, turn: int) -> None:
        driver.sees(turn, OTHER if turn == 0 else OURS)

    driver = Driver(tmp_path, arrives)
    assert founders(driver) == [1, 2]
    driver._check_states()
    assert driver.killed == ["actor 0"]
    assert driver._strangers == [
        "the state m0:/s0 is of another run than that of the first nodes, and takes no part: keep one of the"
        " two runs, and remove the directories of the other"
    ]


def test_it_does_not_wait_for_ever_for_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def arrives(driver: Driver, turn: int) -> None:
        if turn < 3:
            driver.sees(turn, None)

    monkeypatch.setattr(module, "STATES_S", 0.2)
    assert founders(Driver(tmp_path, arrives)) == [0, 1]


def test_states_of_two_runs_are_named_before_the_run_has_begun(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.sees(0, OURS)
    driver.sees(1, OTHER)
    driver._founders = driver._actors[:2]
    with pytest.raises(UsageError, match=r"of 2 runs, .*m0:/s0; m1:/s1: keep the directories of one run"):
        driver._check_states()


def test_a_founder_that_moves_to_a_state_of_another_run_does_not_make_that_the_run(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    for number in (0, 1, 2):
        driver.runs(number, OURS)
    driver._founders = driver._actors[:2]
    driver._check_states()
    driver.sees(0, OTHER)  # on another machine than before
    driver._check_states()
    assert driver.killed == ["actor 0"]
    driver.runs(1, None)
    driver.sees(2, OURS)  # started again at home
    driver._check_states()
    assert driver.killed == ["actor 0"]
