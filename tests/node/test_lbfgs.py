"""`p2psgd lbfgs` with real daemons, of which one is killed and one is stopped for a while."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from p2psgd.cli.weights_file import fetch_replica
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.ipc.script_state import TRAINED
from tests import DEADLINE_S
from tests.daemons import P2PSGD, Daemon, all_stopped, until
from tests.ports import free_ports
from tests.wide import widely

pytestmark = pytest.mark.long

WENT_ON = re.compile("goes on after iteration ([0-9]+)")

RECIPE = """
name = "few"
data = "digits"
hidden = {hidden}
activation = "sigmoid"

[lbfgs]
iterations = 60
l2 = 1e-3
portions = 24
"""


class Nodes:
    """Nodes of one list, each with the built-in trainer."""

    def __init__(self, folder: Path, count: int, hidden: list[int]) -> None:
        folder.mkdir()
        self.folder = folder
        self._ports = free_ports(count)
        (folder / "hosts.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in self._ports))
        (folder / "few.toml").write_text(RECIPE.format(hidden=hidden))
        self.daemons = [self.start(number) for number in range(count)]

    def start(self, number: int) -> Daemon:
        trainer = [*P2PSGD, "lbfgs", "--recipe", str(self.folder / "few.toml")]
        return Daemon(
            self.folder / f"n{number}",
            *("--peers", str(self.folder / "hosts.txt"), "--listen", f"127.0.0.1:{self._ports[number]}"),
            *("--failure-timeout", "1", "--trainer", shlex.join(trainer)),
            log=self.folder / f"n{number}-{len(list(self.folder.glob('*.log')))}.log",
        )

    def trainer(self, number: int) -> dict[str, Any]:
        status = self.daemons[number].status(timeout_s=5)
        return {"iteration": 0, "pid": None, "finished": False} if status is None else status["trainer"]

    def iteration(self, number: int) -> int:
        return int(self.trainer(number)["iteration"])

    def bits(self, number: int) -> bytes:
        """The weights that a node has come to."""
        until(lambda: bool(self.trainer(number)["finished"]), f"node {number} has ended")
        with ControlClient(control_path(self.daemons[number].state)) as client:
            weights = fetch_replica(client).script[TRAINED]
        assert hasattr(weights, "tobytes")
        return bytes(weights.tobytes())


@contextmanager
def running(folder: Path, count: int, hidden: list[int]) -> Iterator[Nodes]:
    nodes = Nodes(folder, count, hidden)
    with all_stopped(nodes.daemons) as daemons:
        nodes.daemons = daemons
        yield nodes


@pytest.fixture(scope="module", params=widely([[16]], [[]]), ids=["net", "softmax"])
def hidden(request: pytest.FixtureRequest) -> list[int]:
    found: list[int] = request.param
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, hidden: list[int]) -> bytes:
    """The bits that a node alone ends with."""
    with running(tmp_path_factory.mktemp("alone") / "run", 1, hidden) as nodes:
        return nodes.bits(0)


@pytest.mark.parametrize("count", widely([4], [2]))
def test_several_nodes_come_to_the_same_bits_as_one(
    tmp_path: Path, alone: bytes, hidden: list[int], count: int
) -> None:
    with running(tmp_path / "run", count, hidden) as nodes:
        assert [nodes.bits(number) for number in range(count)] == [alone] * count


def test_a_killed_node_and_a_stopped_one_change_nothing(
    tmp_path: Path, alone: bytes, hidden: list[int]
) -> None:
    with running(tmp_path / "run", 4, hidden) as nodes:
        until(lambda: nodes.iteration(0) >= 5, "they are under way")
        stopped = [nodes.daemons[2].process.pid, int(nodes.trainer(2)["pid"])]
        nodes.daemons[1].kill()
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        before = nodes.iteration(0)
        until(lambda: nodes.iteration(0) >= before + 10, "the others go on")
        for process in stopped:
            os.kill(process, signal.SIGCONT)
        nodes.daemons[1] = nodes.start(1)
        assert [nodes.bits(number) for number in range(4)] == [alone] * 4
        assert re.search("iteration 60: .* all 60 iterations are made", nodes.daemons[0].words())


def test_all_nodes_were_stopped_and_go_on(tmp_path: Path, alone: bytes, hidden: list[int]) -> None:
    with running(tmp_path / "run", 2, hidden) as nodes:
        until(lambda: nodes.iteration(0) >= 15, "they are under way")
        for daemon in nodes.daemons:
            daemon.process.send_signal(signal.SIGTERM)
        assert [daemon.process.wait(DEADLINE_S) for daemon in nodes.daemons] == [0, 0]
        nodes.daemons[:] = [nodes.start(number) for number in range(2)]
        assert [nodes.bits(number) for number in range(2)] == [alone] * 2
        for daemon in nodes.daemons:
            went_on = WENT_ON.search(daemon.words())
            assert went_on is not None
            assert 10 <= int(went_on[1]) < 60
            assert "not deterministic" not in daemon.words()


def test_all_go_on_from_the_newest_state(tmp_path: Path, alone: bytes, hidden: list[int]) -> None:
    with running(tmp_path / "run", 3, hidden) as nodes:
        until(lambda: nodes.iteration(0) >= 12, "they are under way")
        nodes.daemons[0].process.send_signal(signal.SIGTERM)
        assert nodes.daemons[0].process.wait(DEADLINE_S) == 0
        before = nodes.iteration(1)
        until(lambda: nodes.iteration(1) >= before + 12, "the others go on")
        for daemon in nodes.daemons[1:]:
            daemon.process.send_signal(signal.SIGTERM)
        assert [daemon.process.wait(DEADLINE_S) for daemon in nodes.daemons] == [0, 0, 0]
        nodes.daemons[:] = [nodes.start(number) for number in range(3)]
        assert [nodes.bits(number) for number in range(3)] == [alone] * 3
        words = [daemon.words() for daemon in nodes.daemons]
        began = {int(each[1]) for each in map(WENT_ON.search, words) if each is not None}
        assert len(began) == 1
        too_late = any("without it: what lies between is made again" in each for each in words[1:])
        assert too_late or began.pop() >= before + 12
        assert not any("not deterministic" in each for each in words)


def test_its_figures_are_in_the_status(tmp_path: Path, hidden: list[int]) -> None:
    with running(tmp_path / "run", 1, hidden) as nodes:
        nodes.bits(0)
        trainer = nodes.trainer(0)
        assert trainer["iteration"] == 60
        assert 0 < trainer["gradient_norm"] < 0.1
        assert trainer["step_length"] > 0
        assert trainer["test_accuracy"] > 0.9
