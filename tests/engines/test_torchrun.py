"""torchrun, by the examples as they are: within a node, and over nodes that come and go."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from p2psgd.base.errors import ExitCode
from p2psgd.storage.identity import lay_down_id
from tests.certificates import Certificates
from tests.cli.local.conditions import wait_until
from tests.cli.local.run import Run
from tests.daemons import Daemon, all_stopped, assert_replicas_identical, until
from tests.engines.pages import blocks_of
from tests.lan import Lan
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


class Job:
    """A torchrun job on nodes a, b and c, members in this order. In a Lan each has a host of its own."""

    def __init__(self, directory: Path, lan: Lan | None = None) -> None:
        self._directory, self._lan = directory, lan
        self._lines = [f"{address}:7315" for address in lan.addresses] if lan else []
        self._lines = self._lines or [f"127.0.0.1:{port}" for port in free_ports(3)]
        (self._store_port,) = free_ports(1)
        (directory / "hosts.txt").write_text("\n".join(self._lines))
        self.daemons = [self._start(name) for name in "abc"]

    def start_first(self) -> None:
        """Start the first node again."""
        self.daemons[0] = self._start("a")

    def _start(self, name: str) -> Daemon:
        job = ["--nnodes", "1:3", "--rdzv-id", "digits", "--max-restarts", "20", "--monitor-interval", "0.5"]
        backend = ["--rdzv-backend", "p2psgd", "--rdzv-conf", f"port={self._store_port}"]
        script = [str(ELASTIC), str(EPOCHS), str(self._directory / f"{name}.pt")]  # a disk of its own
        agent = shlex.join([sys.executable, "-m", "torch.distributed.run", *job, *backend, *script])
        state, number = self._directory / name, "abc".index(name)
        state.mkdir(mode=0o700, exist_ok=True)
        lay_down_id(state, node=number + 1, name=name)
        network = ["--peers", str(self._directory / "hosts.txt"), "--listen", self._lines[number]]
        network += ["--failure-timeout", "2", *(["--insecure-plaintext"] if self._lan else [])]
        return Daemon(
            state,
            *network,
            *("--trainer", agent),
            within=self._lan.within(number) if self._lan else None,
            environment={"GLOO_SOCKET_IFNAME": "eth0" if self._lan else "lo"},
        )

    def trains_in(self, processes: int) -> None:
        """Wait until so many processes have made two more epochs together."""
        before, begin = self._epochs_in(processes), time.monotonic()
        what = f"two epochs in {processes} processes"
        until(lambda: self._epochs_in(processes) >= before + 2, what, timeout_s=LIMIT_S)
        print(f"{what} after {time.monotonic() - begin:.1f} s")

    def _epochs_in(self, processes: int) -> int:
        mark = f" in {processes} processes: loss "
        return sum(daemon.words().count(mark) for daemon in self.daemons)

    def end_soon(self) -> None:
        """Have the last node's worker start again with a checkpoint near the end, the newest of all."""
        (worker,) = processes_of(self.daemons[2], workers_only=True)
        os.kill(worker, signal.SIGKILL)
        kept = self._directory / "c.pt"
        _, *state = torch.load(kept)
        torch.save((EPOCHS - LAST, *state), kept)

    def result(self) -> str:
        """Wait for the end, and return what all nodes print in it."""
        for daemon in self.daemons:
            until(daemon.finished, "the job is done", timeout_s=LIMIT_S)
        results = {str(re.findall("test accuracy .*", each.words())[-1]) for each in self.daemons}
        assert len(results) == 1
        return results.pop()


class Typed(Daemon):
    """A node by a command that is typed in a folder, which is the home of its user as well."""

    def __init__(self, folder: Path, command: str, *, within: list[str], interface: str) -> None:
        self.state, self.log = folder / ".local" / "state" / "p2psgd", folder / "log"
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = {"HOME": str(folder), "PATH": programs, "OPENBLAS_NUM_THREADS": "1"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*within, "sh", "-c", f"exec {command}"],
                cwd=folder,
                env={**os.environ, **settings, "GLOO_SOCKET_IFNAME": interface},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def type_on_all(command: str, script: Path, lan: Lan, place: Path, interface: str) -> list[Daemon]:
    """Type a command on all hosts, beside what it names: the list, a certificate and the script."""
    certificates = Certificates(place)
    nodes: list[Daemon] = []
    for number in range(len(lan.hosts)):
        folder = place / f"h{number}"
        folder.mkdir()
        (folder / "hosts.txt").write_text("\n".join(lan.addresses))
        (folder / "tls").symlink_to(certificates.directory(folder.name))
        (folder / "train.py").symlink_to(script)
        nodes.append(Typed(folder, command, within=lan.within(number), interface=interface))
    return nodes


@pytest.mark.root
def test_the_commands_of_the_page_train(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs()
    in_a_node, over_nodes = blocks_of("torchrun.md")
    with Lan(2, rate="1gbit", burst="256kb") as lan:
        nodes = type_on_all(in_a_node, EXAMPLE, lan, tmp_path / "in", "lo")
        with all_stopped(nodes):
            for node in nodes:
                until(node.finished, "the end of the script", timeout_s=LIMIT_S)
            assert_replicas_identical(nodes)
            assert [node.stop() for node in nodes] == [ExitCode.OK] * 2
        nodes = type_on_all(over_nodes, ELASTIC, lan, tmp_path / "over", "eth0")
        with all_stopped(nodes):
            mark = " in 2 processes: loss "  # of the first in the order of ids, which are drawn
            until(lambda: any(mark in each.words() for each in nodes), "an epoch", timeout_s=LIMIT_S)
            assert [node.stop() for node in nodes] == [ExitCode.OK] * 2


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
    """End a node's daemon, agent and workers at once, as a machine's end does."""
    for process in (daemon.process.pid, *processes_of(daemon)):
        os.kill(process, signal.SIGKILL)
    daemon.process.wait(LIMIT_S)


def test_agents_of_the_daemons_members_go_on_without_the_first_one_and_take_it_back(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs()
    job = Job(tmp_path)
    with all_stopped(job.daemons):
        job.trains_in(3)
        kill(job.daemons[0])  # it is the first member: its agent has the store
        job.trains_in(2)
        job.start_first()
        job.trains_in(3)
        job.end_soon()
        job.trains_in(3)  # the same members, in another round
        result = job.result()
    print(result)
    assert float(result.split()[2].rstrip(",")) > 0.9


@pytest.mark.root
def test_agents_leave_a_first_member_that_is_cut_off_though_its_store_only_falls_silent(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs()
    with Lan(3, rate="1gbit", burst="256kb") as lan:
        job = Job(tmp_path, lan)
        with all_stopped(job.daemons):
            job.trains_in(3)
            lan.set_link(0, up=False)
            job.trains_in(2)
            lan.set_link(0, up=True)
            job.trains_in(3)
            job.end_soon()
            assert job.result()
