"""Rings of real daemons and of small scripts that train on their links."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests import DEADLINE_S
from tests.daemons import Daemon, all_stopped, assert_replicas_identical, until
from tests.ports import free_ports
from tests.wide import widely

FAILURE_TIMEOUT_S = 1.0
TRAIN = """
import mmap
import os
import sys
import numpy as np
import p2psgd
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path

def look():
    # a round is open that this trainer has not given its share to: its replica stands still
    with ControlClient(control_path(None)) as client:
        answer, descriptors = client.request_with_fds("replica")
        with mmap.mmap(descriptors[0], 4 * answer["weights"], prot=mmap.PROT_READ) as memory:
            replica = np.frombuffer(memory[:], np.int32)
        os.close(descriptors[0])
    dense = link.mode.payload != "sparse"
    weights = replica.view(np.float32) if dense else (replica * link.quantum).astype(np.float32)
    if not link._memory.reload_wanted:
        assert (weights == link.weights).all(), "the weights are not those of the replica"

with p2psgd.attach(np.zeros(2000, np.float32), mode="ring", payload=sys.argv[1]) as link:
    random = np.random.default_rng(link.rank)
    while link.steps < int(sys.argv[2]):
        link.receive()
        if link.stopping:
            break
        if link.steps % 5 == 0:
            look()
        delta = random.normal(0, 1e-3, 2000).astype(np.float32)
        link.send(delta, 1000) if link.mode.payload == "sparse" else link.send(delta)
    link.receive()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[Daemon]]]:
    """Start so many nodes whose trainers give so many shares to a ring with this payload."""
    daemons: list[Daemon] = []

    def begin(nodes: int, payload: str, shares: int, script: str = TRAIN) -> list[Daemon]:
        (tmp_path / "train.py").write_text(script)
        ports = free_ports(nodes)
        hosts = tmp_path / "hosts.txt"
        hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
        trainer = f"{sys.executable} {tmp_path / 'train.py'} {payload} {shares}"
        for number, port in enumerate(ports):
            options = ["--peers", str(hosts), "--listen", f"127.0.0.1:{port}", "--trainer", trainer]
            daemons.append(
                Daemon(tmp_path / f"n{number}", *options, "--failure-timeout", str(FAILURE_TIMEOUT_S))
            )
        return daemons

    with all_stopped(daemons):
        yield begin


def ring_of(daemon: Daemon) -> dict[str, Any]:
    return (daemon.status() or {}).get("ring") or {"round": 0, "running": False, "order": []}


def until_rounds(daemon: Daemon, rounds: int) -> None:
    """Wait until it has completed so many more."""
    goal = ring_of(daemon)["round"] + rounds
    until(lambda: ring_of(daemon)["round"] >= goal, f"round {goal} at {daemon.state.name}")


def finish(daemons: list[Daemon]) -> None:
    """Ask all trainers to end, and wait until they have."""
    for daemon in daemons:
        with ControlClient(control_path(daemon.state), timeout_s=30) as client:
            client.request("finish")
    until(lambda: all(daemon.finished() for daemon in daemons), "all trainers are done")


@pytest.mark.parametrize("payload", ["sparse", "dense", "dense-float16"])
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_ring_trains_in_step_and_its_status_tells_how_it_stands(
    start: Callable[..., list[Daemon]], nodes: int, payload: str
) -> None:
    daemons = start(nodes, payload, 30)
    until(lambda: all(daemon.finished() for daemon in daemons), "all trainers are done")
    assert_replicas_identical(daemons)
    for daemon in daemons:
        status = daemon.status()
        assert status is not None
        assert status["trainer"]["steps"] == 30
        ring = status["ring"]
        assert (ring["round"], ring["payload"], ring["nodes"]) == (30, payload, nodes)
        assert sorted(ring["order"]) == [f"n{number}" for number in range(nodes)]
        assert (ring["active"], ring["generation"] >= 1) == (False, True)
        assert "not those of the replica" not in daemon.words()
    assert [daemon.stop() for daemon in daemons] == [0] * nodes


@pytest.mark.long
@pytest.mark.parametrize("payload", widely(["dense"], ["sparse"]))
def test_a_ring_outlives_a_trainer_and_a_daemon_that_come_back(
    start: Callable[..., list[Daemon]], tmp_path: Path, payload: str
) -> None:
    daemons = start(3, payload, 1_000_000)
    until_rounds(daemons[0], 10)
    status = daemons[1].status()
    assert status is not None
    os.kill(status["trainer"]["pid"], signal.SIGKILL)
    until_rounds(daemons[0], 10)
    until(lambda: ring_of(daemons[1]).get("active"), "the trainer is back")
    until_rounds(daemons[1], 10)
    victim = daemons[2]
    victim.kill()
    until_rounds(daemons[0], 10)
    until(lambda: len(ring_of(daemons[0])["order"]) == 2, "a ring without the victim")
    command = victim.process.args
    assert isinstance(command, list)
    daemons[2] = Daemon(victim.state, *command[command.index("--peers") :], log=tmp_path / "again.log")
    until(lambda: len(ring_of(daemons[0])["order"]) == 3 and ring_of(daemons[2]).get("active"), "all three")
    until_rounds(daemons[2], 10)
    finish(daemons)
    assert_replicas_identical(daemons)
    assert not any("not those of the replica" in daemon.words() for daemon in daemons)


@pytest.mark.long
@pytest.mark.parametrize("payload", widely(["sparse"], ["dense"]))
def test_a_run_that_was_stopped_as_a_whole_goes_on_with_the_next_round(
    start: Callable[..., list[Daemon]], payload: str
) -> None:
    daemons = start(2, payload, 1_000_000)
    until_rounds(daemons[0], 20)
    for daemon in daemons:
        daemon.process.send_signal(signal.SIGTERM)
    assert [daemon.process.wait(DEADLINE_S) for daemon in daemons] == [0, 0]
    for number, daemon in enumerate(daemons):
        command = daemon.process.args
        assert isinstance(command, list)
        log = daemon.state.with_suffix(".again.log")
        daemons[number] = Daemon(daemon.state, *command[command.index("--peers") :], log=log)
    until(lambda: all(ring_of(daemon).get("active") for daemon in daemons), "both trainers")
    assert all(ring_of(daemon)["round"] >= 20 for daemon in daemons)
    until_rounds(daemons[0], 5)
    finish(daemons)
    assert_replicas_identical(daemons)


@pytest.mark.long
def test_a_node_that_stops_leaves_the_ring_and_the_others_go_on(start: Callable[..., list[Daemon]]) -> None:
    daemons = start(3, "sparse", 1_000_000)
    until_rounds(daemons[0], 10)
    assert daemons[2].stop() == 0
    until_rounds(daemons[0], 10)
    assert sorted(ring_of(daemons[0])["order"]) == ["n0", "n1"]
    finish(daemons[:2])
    assert_replicas_identical(daemons[:2])


UNLIKE = """
import os
import numpy as np
import p2psgd

with p2psgd.attach(np.zeros(500, np.float32), mode="ring", payload="dense") as link:
    link.allreduce(np.zeros((3, 4 + link.rank), np.float32), name="counts")
"""


def test_shapes_that_differ_are_told_with_the_array_and_both_shapes(
    start: Callable[..., list[Daemon]],
) -> None:
    daemons = start(2, "dense", 1, UNLIKE)
    words = ("'counts'", "(3, 4)", "(3, 5)")
    until(lambda: any(all(word in daemon.words() for word in words) for daemon in daemons), "the sentence")


BROKEN = """
import pathlib
import sys
import numpy as np
import p2psgd

with p2psgd.attach(np.zeros(500, np.float32), mode="ring", payload="dense") as link:
    ones, once = np.ones((3, 4), np.float32), pathlib.Path(sys.argv[0]).with_name(f"once-{link.node}")
    if link.rank == 0 and not once.exists():
        once.touch()
        ones[2, 1] = np.nan
    sums = link.allreduce(ones, "sum", name="counts", copy=False)
    assert np.isfinite(sums).all()  # of whoever has a trainer meanwhile
    assert not sums.flags.writeable
    print("summed", file=sys.stderr, flush=True)
"""


@pytest.mark.long
def test_an_array_that_is_not_finite_is_refused_and_the_trainer_may_come_again(
    start: Callable[..., list[Daemon]],
) -> None:
    daemons = start(3, "dense", 1, BROKEN)
    until(lambda: all("summed" in daemon.words() for daemon in daemons), "the sums")
    words = "TrainerError: 'counts' (3, 4), to be summed is refused: number 9 is nan, not finite"
    assert sum(words in daemon.words() for daemon in daemons) == 1
