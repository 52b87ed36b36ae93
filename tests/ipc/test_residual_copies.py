"""A trainer that keeps its residual elsewhere leaves copies of it for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.client.attach import attach
from p2psgd.client.compute import HostCompute, PassResult, Segment, pass_over
from p2psgd.client.link import Link
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.ipc.ring_buffer import Counter, pack_copy, unpack_copy
from p2psgd.ipc.trainer_memory import TrainerMemory
from tests.ipc.daemons import WEIGHTS, ZEROS, Daemon
from tests.ipc.doomed_trainer import delta_of


class Elsewhere(HostCompute):
    """As on a GPU: the residual lies where nobody else sees it, and `rest` copies it at every chance."""

    def __init__(self, answer: AttachAnswer, memory: TrainerMemory[Any]) -> None:
        super().__init__(answer, memory)
        self.halves = np.zeros((2, answer.weights), np.float32)
        self.halves[memory.steps % 2] = memory.take_out_residual()
        self.copying = True

    @property
    def residual(self) -> NDArray[np.float32]:
        half: NDArray[np.float32] = self.halves[self._memory.steps % 2]
        return half

    def pass_over(
        self, delta: NDArray[Any] | None, chains: Sequence[Segment], meanwhile: Callable[[], None]
    ) -> list[PassResult]:
        target = self.halves[(self._memory.steps + 1) % 2]
        assert delta is not None
        return pass_over(self.residual, delta, target, chains, words=self._words)

    def rest(self) -> None:
        if self.copying:
            self._memory.copy_residual(self.write)

    def write(self, copy: NDArray[np.float32]) -> None:
        copy[:] = self.residual

    def close(self) -> None:
        self._memory.copy_residual(self.write)


def send(link: Link, number: int) -> None:
    for _ in range(number):
        link.send(delta_of(link.steps + 1, WEIGHTS), 8)


def end_without_a_word(link: Link, daemon: Daemon) -> None:
    """As a killed process would."""
    link._client.close()
    daemon.until(lambda: bool(daemon.host.left), "the trainer's end is seen")


@pytest.mark.parametrize("copy", [(0, 0), (0, 1), (1, 0), (2**62, 1)])
def test_a_residual_copy_says_whose_it_is_and_where(copy: tuple[int, int]) -> None:
    assert unpack_copy(pack_copy(*copy)) == copy
    assert unpack_copy(0) is None


@pytest.mark.parametrize("sends", [0, 1, 2, 3])
def test_one_that_leaves_gives_its_residual_back(daemon: Daemon, sends: int) -> None:
    with attach(ZEROS, control=daemon.path, make_compute=Elsewhere) as link:
        send(link, sends)
        residual = link.residual.copy()
        assert residual.any() == (sends > 0)
    for make_compute in (HostCompute, Elsewhere, HostCompute):
        with attach(control=daemon.path, make_compute=make_compute) as link:
            assert link.residual_age == 0
            np.testing.assert_array_equal(link.residual, residual)


@pytest.mark.parametrize("later", [1, 2, 3])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_next_one_gets_the_last_copy_of_one_that_has_died_and_is_told_its_age(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], before: int, later: int
) -> None:
    link = attach(ZEROS, control=daemon.path, make_compute=Elsewhere)
    send(link, before)
    compute = link._compute
    assert isinstance(compute, Elsewhere)
    link.receive()
    residual = link.residual.copy()
    compute.copying = False
    send(link, later)
    end_without_a_word(link, daemon)
    with attach(control=daemon.path) as link:
        assert (link.steps, link.residual_age) == (before + later, later)
        np.testing.assert_array_equal(link.residual, residual)
        assert f"the residual is that of {later} mini-batch" in capsys.readouterr().err
        send(link, 1)
        residual = link.residual.copy()
    with attach(control=daemon.path) as link:
        assert link.residual_age == 0
        np.testing.assert_array_equal(link.residual, residual)
    assert not capsys.readouterr().err


def test_a_copy_that_was_not_finished_is_nobodys(daemon: Daemon) -> None:
    link = attach(ZEROS, control=daemon.path, make_compute=Elsewhere)
    send(link, 2)
    compute = link._compute
    assert isinstance(compute, Elsewhere)
    compute.rest()
    residual = link.residual.copy()
    compute.copying = False
    send(link, 1)

    def write_half(copy: NDArray[np.float32]) -> None:
        copy[: WEIGHTS // 2] = 7.0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute._memory.copy_residual(write_half)
    end_without_a_word(link, daemon)
    with attach(control=daemon.path) as link:
        assert link.residual_age == 1
        np.testing.assert_array_equal(link.residual, residual)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_copy_that_is_not_finite_costs_its_weights_alone(daemon: Daemon, leaves: bool) -> None:
    """As a GPU with a fault would leave it."""
    link = attach(ZEROS, control=daemon.path, make_compute=Elsewhere)
    send(link, 3)
    compute = link._compute
    assert isinstance(compute, Elsewhere)
    expected = link.residual.copy()
    compute.residual[5:8] = np.nan, np.inf, -np.inf
    expected[5:8] = 0
    if leaves:
        link.close()
    else:
        link.receive()
        end_without_a_word(link, daemon)
    for make_compute in (Elsewhere, HostCompute):
        with attach(control=daemon.path, make_compute=make_compute) as after:
            assert after.residual_age == 0
            np.testing.assert_array_equal(after.residual, expected)
    (alarm,) = daemon.host.alarms
    assert alarm.startswith("the trainer's residual was NaN or infinite at 3 of 3,000 weights, and the next ")


def test_a_daemon_that_asks_while_nobody_is_there_gets_the_last_copy(daemon: Daemon) -> None:
    link = attach(ZEROS, control=daemon.path, make_compute=Elsewhere)
    send(link, 3)
    link.receive()
    residual = link.residual.copy()
    end_without_a_word(link, daemon)
    daemon.call(daemon.server.session.request_state)
    (state,) = daemon.host.states
    assert state.residual is not None
    np.testing.assert_array_equal(state.residual, residual)
    with attach(control=daemon.path) as link:
        np.testing.assert_array_equal(link.residual, residual)


@pytest.mark.parametrize("rubbish", [2, 3, 2**64 - 1, 2**64 - 2])
def test_a_trainer_that_writes_rubbish_about_its_copies_spoils_no_more_than_its_residual(
    daemon: Daemon, rubbish: int
) -> None:
    link = attach(ZEROS, control=daemon.path)
    send(link, 3)
    link._memory._counters.store(Counter.RESIDUAL_COPY, rubbish)
    end_without_a_word(link, daemon)
    with attach(control=daemon.path) as link:
        assert link.steps == 3
        assert link.residual_age in (0, 3)
        np.testing.assert_array_equal(link.weights, daemon.weights())
        send(link, 1)
