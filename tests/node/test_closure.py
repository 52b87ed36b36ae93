"""Mode closure with real daemons and trainers, of which one is killed and one is stopped for a while."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports
from tests.wide import widely

pytestmark = pytest.mark.long

EVALUATIONS = 25
# Gradient descent on rows that all nodes have; each writes down the bits of what it comes to. `pace` makes an
# evaluation last long enough for something to happen in the middle of one.
SCRIPT = """
import os, sys, time
from pathlib import Path
import numpy as np
import p2psgd

folder, evaluations, pace = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
rows = np.random.default_rng(1).normal(size=(600, 41))

def loss_and_gradient(x, part):
    time.sleep(pace)
    residual = part[:, :-1] @ x - part[:, -1]
    return 0.5 * residual @ residual, part[:, :-1].T @ residual

initial = {"a": np.zeros((5, 6), np.float32), "b": np.zeros(10, np.float32)}
with p2psgd.attach(initial, mode="closure") as link:
    (folder / f"{link.node}.pid").write_text(str(os.getpid()))
    x = np.zeros(40)
    for number in range(evaluations):
        value, gradient = link.evaluate(loss_and_gradient, x, rows, portions=12)
        x -= 5e-4 * gradient
        (folder / f"{link.node}.done").write_text(str(number + 1))
    (folder / f"{link.node}.new").write_text(f"{value.hex()} {x.tobytes().hex()}")
    (folder / f"{link.node}.new").rename(folder / f"{link.node}.bits")
"""


class Nodes:
    """Nodes of one list, each with the script."""

    def __init__(self, folder: Path, count: int, *, pace_s: float = 0.005) -> None:
        folder.mkdir()
        self.folder = folder
        self._pace_s = pace_s
        self._ports = free_ports(count)
        (folder / "hosts.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in self._ports))
        (folder / "train.py").write_text(SCRIPT)
        self.daemons = [self.start(number) for number in range(count)]

    def start(self, number: int) -> Daemon:
        script = [str(self.folder / "train.py"), str(self.folder), str(EVALUATIONS), str(self._pace_s)]
        return Daemon(
            self.folder / f"n{number}",
            *("--peers", str(self.folder / "hosts.txt"), "--listen", f"127.0.0.1:{self._ports[number]}"),
            *("--failure-timeout", "1", "--trainer", shlex.join([sys.executable, *script])),
        )

    def done(self, number: int) -> int:
        place = self.folder / f"n{number}.done"
        return int(place.read_text() or 0) if place.exists() else 0

    def bits(self, number: int) -> str:
        place = self.folder / f"n{number}.bits"
        until(place.exists, f"node {number} has ended")
        return place.read_text()

    def trainer(self, number: int) -> int:
        return int((self.folder / f"n{number}.pid").read_text())


@contextmanager
def running(folder: Path, count: int, *, pace_s: float = 0.005) -> Iterator[Nodes]:
    nodes = Nodes(folder, count, pace_s=pace_s)
    with all_stopped(nodes.daemons) as daemons:
        nodes.daemons = daemons
        yield nodes


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bits that a node alone ends with."""
    with running(tmp_path_factory.mktemp("alone") / "run", 1) as nodes:
        return nodes.bits(0)


@pytest.mark.parametrize("count", widely([4], [2]))
def test_several_nodes_come_to_the_same_bits_as_one(tmp_path: Path, alone: str, count: int) -> None:
    with running(tmp_path / "run", count) as nodes:
        assert [nodes.bits(number) for number in range(count)] == [alone] * count


def test_a_killed_node_and_a_stopped_one_change_nothing(tmp_path: Path, alone: str) -> None:
    with running(tmp_path / "run", 4, pace_s=0.02) as nodes:
        until(lambda: nodes.done(0) >= 3, "they evaluate")
        nodes.daemons[1].kill()
        stopped = [nodes.daemons[2].process.pid, nodes.trainer(2)]
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        before = nodes.done(0)
        until(lambda: nodes.done(0) >= before + 4, "the others go on")
        for process in stopped:
            os.kill(process, signal.SIGCONT)
        nodes.daemons[1] = nodes.start(1)
        assert [nodes.bits(number) for number in range(4)] == [alone] * 4


def test_a_killed_trainer_makes_up_for_it(tmp_path: Path, alone: str) -> None:
    with running(tmp_path / "run", 2, pace_s=0.02) as nodes:
        until(lambda: nodes.done(1) >= 5, "they evaluate")
        os.kill(nodes.trainer(1), signal.SIGKILL)
        assert [nodes.bits(number) for number in range(2)] == [alone] * 2
