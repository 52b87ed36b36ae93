"""Mode owners with real daemons and trainers, of which some are killed."""

from __future__ import annotations

import math
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.daemons import Daemon, all_stopped, assert_replicas_identical, until
from tests.ports import free_ports

pytestmark = pytest.mark.long

WEIGHTS = 3_000
# Each node minimises the distance to the same point, from noisy gradients, until the file `end` is there.
SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import p2psgd

folder = Path(sys.argv[1])
truth = np.random.default_rng(1).normal(size=3000).astype(np.float32)
noise = np.random.default_rng()
with p2psgd.attach(np.zeros(3000, np.float32), mode="owners") as link:
    while not (folder / "end").exists() and not link.stopping:
        link.receive()
        gradient = link.weights - truth + 0.1 * noise.normal(size=3000).astype(np.float32)
        link.send(-0.01 * gradient, threshold=8000)
        time.sleep(0.02)
    while link.wait(2):  # until owners have nothing more to say
        link.receive()
"""


class Nodes:
    """Nodes of one list."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._ports = free_ports(count)
        (folder / "hosts.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in self._ports))
        (folder / "train.py").write_text(SCRIPT)
        self.daemons = [self.start(number) for number in range(count)]

    def start(self, number: int) -> Daemon:
        command = shlex.join([sys.executable, str(self._folder / "train.py"), str(self._folder)])
        return Daemon(
            self._folder / f"n{number}",
            *("--peers", str(self._folder / "hosts.txt"), "--listen", f"127.0.0.1:{self._ports[number]}"),
            *("--failure-timeout", "1", "--trainer", command),
        )


def distance(daemon: Daemon) -> float:
    """How far the node's replica is from the point, as a mean; infinite before there is one."""
    if daemon.run() is None:
        return math.inf
    truth = np.random.default_rng(1).normal(size=WEIGHTS)
    weights = np.frombuffer(daemon.replica()[1], np.int32) * 2.0**-20
    return float(np.abs(weights - truth).mean())


def test_owners_learn_and_replicas_stay_equal_though_one_is_killed_again_and_again(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 4)
    with all_stopped(nodes.daemons) as daemons:
        until(lambda: distance(daemons[3]) < 0.5, "they learn")
        for number in (0, 2, 0):
            daemons[number].kill()
            before = distance(daemons[3])
            time.sleep(2)  # others take over what it owned
            assert distance(daemons[3]) < before + 0.01
            daemons[number] = nodes.start(number)
            until(lambda: len(daemons[3].linked()) == 3, "it is back")
        until(lambda: all(distance(each) < 0.05 for each in daemons), "they have learnt")
        (tmp_path / "end").touch()
        for each in daemons:
            until(each.finished, "the scripts have ended")

        def covered() -> bool:
            return not any((each.status() or {})["owners"]["waiting"] for each in daemons)

        until(covered, "all that was contributed is covered")
        assert_replicas_identical(daemons)
        assert distance(daemons[0]) < 0.05
        owned = [(each.status() or {})["owners"] for each in daemons]
        assert sorted((each["first"], each["end"]) for each in owned) == [
            (place * WEIGHTS // 4, (place + 1) * WEIGHTS // 4) for place in range(4)
        ]
        assert not any(each["lost"] for each in owned)


def test_an_owner_that_is_stopped_hands_over_what_it_had_added_up(tmp_path: Path) -> None:
    with all_stopped(Nodes(tmp_path, 3).daemons) as daemons:
        until(lambda: distance(daemons[1]) < 0.5, "they learn")
        assert daemons[2].stop() == 0
        until(lambda: distance(daemons[1]) < 0.05, "the others go on")
        (tmp_path / "end").touch()
        for each in daemons[:2]:
            until(each.finished, "the scripts have ended")
        assert_replicas_identical(daemons[:2])
