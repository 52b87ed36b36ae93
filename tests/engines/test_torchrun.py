"""torchrun, by the examples as they are: within a node, and over nodes that come and go."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.storage.identity import lay_down_id
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.daemons import Daemon, all_stopped, until
from tests.operations.machines import CHECKOUT
from tests.ports import free_ports
from tests.torch.needed import torch

pytestmark = pytest.mark.long

EXAMPLE: Final = CHECKOUT / "examples" / "torch" / "torchrun.py"
ELASTIC: Final = EXAMPLE.with_name("elastic.py")
PROCESSES: Final = 2
EPOCHS: Final = 100_000  # more than there is time for,
LAST: Final = 5  # but for these
LIMIT_S: Final = 400


def other_processes(first: int) -> list[int]:
    """Return the processes of the script beside the one that is attached, of the same torchrun."""
    parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if int(child) != first]


def pid_of(run: Run) -> int | None:
    """Return the process that is attached to the second node."""
    pid: int | None = run.status(1).get("trainer", {}).get("pid")
    return pid


def test_nodes_of_two_processes_train_though_one_process_is_killed(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs()
    assert torch.distributed.is_available()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = shlex.join([*torchrun, "--nproc-per-node", str(PROCESSES), str(EXAMPLE)])
    run = Run(tmp_path, "-n", "2", "--trainer", command)
    try:
        wait_until(lambda: run.steps(1) >= 20 or run.process.poll() is not None, "20 steps", LIMIT_S)
        first = pid_of(run)
        assert first is not None, run.output
        (other,) = other_processes(first)
        os.kill(other, signal.SIGKILL)
        wait_until(lambda: pid_of(run) not in (None, first), "a new one", LIMIT_S)
        assert run.ends(LIMIT_S) == ExitCode.OK, run.output
    finally:
        run.close()
    report = run.report()
    assert (report["replicas_identical"], report["lost"]) == (True, [])
    steps = [node["steps"] for node in report["per_node"]]
    assert min(steps) >= 30 * (1437 // (2 * PROCESSES * 16)), steps
    accuracy = float(run.output.rpartition("test accuracy ")[2].split()[0])
    print(f"steps {steps}, test accuracy {accuracy}")
    assert accuracy > 0.9


def start(directory: Path, name: str, lines: list[str], store_port: int) -> Daemon:
    """Start one of the nodes a, b and c, members in this order, with an agent of the job as its trainer."""
    job = ["--nnodes", "1:3", "--rdzv-id", "digits", "--max-restarts", "20", "--monitor-interval", "0.5"]
    backend = ["--rdzv-backend", "p2psgd", "--rdzv-conf", f"port={store_port}"]
    script = [str(ELASTIC), str(EPOCHS), str(directory / f"{name}.pt")]  # a disk of its own
    agent = shlex.join([sys.executable, "-m", "torch.distributed.run", *job, *backend, *script])
    (directory / "hosts.txt").write_text("\n".join(lines))
    state, number = directory / name, "abc".index(name)
    state.mkdir(mode=0o700, exist_ok=True)
    lay_down_id(state, node=number + 1, name=name)
    network = ("--peers", str(directory / "hosts.txt"), "--listen", lines[number], "--failure-timeout", "2")
    return Daemon(state, *network, "--trainer", agent)


def processes_of(daemon: Daemon, *, workers_only: bool = False) -> list[int]:
    """Return a node's agent and workers."""
    marks = [b"P2PSGD_CONTROL=" + os.fsencode(daemon.state), b"LOCAL_RANK=0"][: 1 + workers_only]
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (directory / "environ").read_bytes().split(b"\0")
            if all(mark in environment for mark in marks):
                found.append(int(directory.name))
    return found


def kill(daemon: Daemon) -> None:
    """End a node as a machine without power does: the daemon, its agent and its workers at once."""
    processes = processes_of(daemon)
    daemon.process.kill()
    for process in processes:
        os.kill(process, signal.SIGKILL)
    daemon.kill()


def test_agents_of_the_daemons_members_go_on_without_the_first_one_and_take_it_back(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs()
    lines, (store_port,) = [f"127.0.0.1:{port}" for port in free_ports(3)], free_ports(1)
    with all_stopped([start(tmp_path, name, lines, store_port) for name in "abc"]) as daemons:

        def train_in(processes: int) -> None:
            """Wait until so many processes have made two more epochs together."""
            mark = f" in {processes} processes: loss "
            before = [daemon.words().count(mark) for daemon in daemons]

            def made() -> bool:
                now = [daemon.words().count(mark) for daemon in daemons]
                return sum(now) >= sum(before) + 2

            begin = time.monotonic()
            until(made, f"two epochs in {processes} processes", timeout_s=LIMIT_S)
            print(f"two epochs in {processes} processes after {time.monotonic() - begin:.1f} s")

        train_in(3)
        kill(daemons[0])  # the first member, whose agent has the store, and whose worker has the workers'
        train_in(2)
        killed, daemons[0] = daemons[0], start(tmp_path, "a", lines, store_port)
        assert killed.process.poll() is not None
        train_in(3)  # the first member again
        (worker,) = processes_of(daemons[2], workers_only=True)
        os.kill(worker, signal.SIGKILL)
        _, *state = torch.load(tmp_path / "c.pt")
        torch.save((EPOCHS - LAST, *state), tmp_path / "c.pt")  # the newest, which all go on with
        train_in(3)  # the same members, in another round
        for daemon in daemons:
            until(daemon.finished, "the job is done", timeout_s=LIMIT_S)
        results = {re.findall("test accuracy .*", daemon.words())[-1] for daemon in daemons}
    print(*results)
    assert len(results) == 1
    assert float(results.pop().split()[2].rstrip(",")) > 0.9
