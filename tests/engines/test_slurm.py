"""A run in a real Slurm, by engines/slurm/p2psgd.sbatch as it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from p2psgd.storage.checkpoint_store import CheckpointStore
from p2psgd.storage.files import FOLDER
from tests.daemons import P2PSGD, Daemon, assert_replicas_identical, until
from tests.engines.pages import PAGES, PROGRAM, blocks_of, path_with
from tests.engines.slurm import Slurm
from tests.lan import Lan
from tests.operations.machines import CHECKOUT

NODES: Final = [f"c{number}" for number in range(1, 7)]
TASKS: Final = 4
LIMIT_S: Final = 240
REVOKED_S: Final = 5
ASK: Final = (
    "from p2psgd.net.peer_sources.slurm import from_slurm; s = from_slurm('7400');"
    " print('peers', *s.ask(), s.ordered, flush=True)"
)


class Task(Daemon):
    """A node that Slurm has started, known by its state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def incarnation(self) -> int:
        return int((self.status() or {}).get("incarnation", 0))

    def steps(self) -> int:
        return int((self.status() or {"trainer": {}})["trainer"].get("steps", 0))

    def events(self) -> str:
        command = [*P2PSGD, "events", "--state", str(self.state)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def is_well(self) -> bool:
        status = self.status() or {}
        return bool(status.get("ready")) and len(self.linked()) == TASKS - 1


class Desk:
    """A folder where a person types what the page says: with the script, and the program in the PATH."""

    def __init__(self, slurm: Slurm, place: Path, environment: Mapping[str, str]) -> None:
        self._slurm, self._place = slurm, place
        path = path_with({"p2psgd": PROGRAM}, place / "bin")
        (place / "engines").symlink_to(CHECKOUT / "engines")
        self._environment = {"PATH": path, "OPENBLAS_NUM_THREADS": "1", **environment}

    def type(self, commands: str) -> str:
        """Type commands, the last of which is sbatch, and return the job's number."""
        script = f"cd {self._place}\n{commands}"
        words = self._slurm.run("sh", "-euc", script, environment=self._environment)
        return words.split()[-1]

    def output(self) -> str:
        """Return what the jobs have printed."""
        return "".join(log.read_text() for log in self._place.glob("slurm-*.out"))


class Job:
    """The job of engines/slurm/p2psgd.sbatch, and the nodes of its tasks."""

    def __init__(self, slurm: Slurm, place: Path) -> None:
        self._slurm = slurm
        self._desk = Desk(slurm, place, {"TRAINER": "p2psgd train --recipe digits --seconds 600"})
        self.tasks = [Task(place / "run" / f"node-{number}") for number in range(TASKS)]
        self.number = self._desk.type(blocks_of("slurm.md")[0])

    def state(self) -> str:
        return self._slurm.job(self.number, "%T")

    def machines(self) -> list[str]:
        return self._slurm.run("scontrol", "show", "hostnames", self._slurm.job(self.number, "%N")).split()

    def is_well(self) -> bool:
        return all(task.is_well() for task in self.tasks)

    def runs_again(self) -> None:
        """Wait until it has ended, and all of its nodes are back."""
        until(lambda: self.state() != "RUNNING", "it ends", timeout_s=LIMIT_S)
        until(self._starts_now, "it runs again", timeout_s=LIMIT_S)
        until(self.is_well, "all are back", timeout_s=LIMIT_S)

    def _starts_now(self) -> bool:
        """Return whether it runs; have it start else, which Slurm does only two minutes after a requeue.

        Not at once: Slurm has revoked all credentials of the job up to the second of the requeue.
        """
        if self.state() == "PENDING":
            time.sleep(REVOKED_S)
            self._slurm.succeeds("scontrol", "update", f"jobid={self.number}", "starttime=now")
            until(lambda: self.state() != "PENDING", "it starts", timeout_s=LIMIT_S)
        return self.state() == "RUNNING"

    def finish(self) -> None:
        """Have the trainers end, compare the replicas, and see the job end by itself."""
        for task in self.tasks:
            with ControlClient(control_path(task.state), timeout_s=30) as client:
                client.request("finish")
        until(lambda: all(task.finished() for task in self.tasks), "the training ends", timeout_s=LIMIT_S)
        assert len(assert_replicas_identical(list(self.tasks), timeout_s=LIMIT_S)) >= TASKS
        until(self._is_completed, "the job ends well", timeout_s=LIMIT_S)
        kept = [CheckpointStore(task.state / FOLDER).latest()[0] for task in self.tasks]
        assert len({None if each is None else each.digest for each in kept} - {None}) == 1

    def _is_completed(self) -> bool:
        return "JobState=COMPLETED" in self._slurm.run("scontrol", "show", "job", self.number)

    def close(self) -> None:
        print(self._desk.output(), flush=True)
        self._slurm.run("scancel", self.number)
        until(lambda: not self.state(), "it is gone", timeout_s=LIMIT_S)


@pytest.mark.root
@pytest.mark.timeout(1500)
def test_a_job_trains_through_a_drained_and_a_killed_node_and_goes_on_when_it_is_queued_again(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs("slurmctld", "slurmd", "munged", "sbatch", "srun")
    place = tmp_path / "slurm"
    place.mkdir()
    with Lan(len(NODES) + 1, rate="1gbit", burst="256kb") as lan, Slurm(lan, place, NODES) as slurm:
        until(
            lambda: all(slurm.state_of(name) == "idle" for name in NODES), "all are idle", timeout_s=LIMIT_S
        )
        job = Job(slurm, tmp_path)
        try:
            until(job.is_well, "all are linked and ready", timeout_s=LIMIT_S)
            until(partial(all_beyond, job.tasks, [0] * TASKS), "all train", timeout_s=LIMIT_S)
            _, _, killed, drained = job.machines()

            slurm.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
            assert slurm.state_of(drained) == "draining"
            slurm.kill(killed)
            until(lambda: "down" in slurm.state_of(killed), "Slurm has seen it", timeout_s=LIMIT_S)
            assert job.state() == "RUNNING"
            others = [job.tasks[number] for number in (0, 1, 3)]
            before = [task.steps() for task in others]
            until(partial(all_beyond, others, before), "the others go on", timeout_s=LIMIT_S)

            # A daemon that is killed is started again, by the script.
            lives = [others[1].incarnation()]
            os.kill(int((others[1].status() or {})["pid"]), signal.SIGKILL)
            until(lambda: others[1].incarnation() > lives[0], "it is back", timeout_s=LIMIT_S)
            until(lambda: bool((others[1].status() or {}).get("ready")), "it is ready", timeout_s=LIMIT_S)

            lives, before = [task.incarnation() for task in others], [task.steps() for task in others]
            slurm.run("scontrol", "requeue", job.number)
            job.runs_again()
            assert not {drained, killed} & set(job.machines())
            assert all(task.incarnation() > life for task, life in zip(others, lives, strict=True))
            assert all(task.steps() >= count for task, count in zip(others, before, strict=True))

            # The signal before the time limit; and a job that is more urgent.
            for command in (
                ("scancel", "--batch", "--signal=USR1", job.number),
                ("sbatch", "--partition=urgent", "--wrap=sleep 5", f"--output={place}/urgent.out"),
            ):
                lives = [task.incarnation() for task in job.tasks]
                slurm.run(*command)
                job.runs_again()
                assert all(task.incarnation() > life for task, life in zip(job.tasks, lives, strict=True))
                assert all("stopped by SIGTERM" in task.events() for task in job.tasks)
                assert not any("stopped at once" in task.events() for task in job.tasks)
            one, two, *_ = job.machines()
            job.finish()
        finally:
            job.close()
        check_lists(slurm, tmp_path, one, two)
        check_other_jobs(slurm, tmp_path)


TRAIN: Final = "p2psgd train --recipe digits --steps 1500"


def check_other_jobs(slurm: Slurm, place: Path) -> None:
    """Run what the page has for other kinds of jobs."""
    begin, array = blocks_of("slurm.md")
    issue = begin[: begin.index("sbatch")]
    (parts,) = re.findall(r"`(sbatch [^`]* : [^`]*)`", (PAGES / "slurm.md").read_text())
    check_end(slurm, place / "parts", issue + parts, TRAIN)
    # There are four machines. Arrays give no ranks, and this recipe's data are not in shards.
    trainer = f"sh -c 'exec {TRAIN} --rank $SLURM_ARRAY_TASK_ID/{TASKS}'"
    check_end(slurm, place / "array", issue + array.replace("0-15", f"0-{TASKS - 1}"), trainer)


def check_end(slurm: Slurm, place: Path, commands: str, trainer: str) -> None:
    """Type commands, wait until the job ends by itself, and compare what its nodes have."""
    desk = Desk(slurm, place, {"TRAINER": trainer})
    number = desk.type(commands)
    try:
        until(lambda: not slurm.job(number, "%T"), f"job {number} ends", timeout_s=LIMIT_S)
        words = slurm.run("scontrol", "show", "job", number)
    finally:
        print(desk.output(), flush=True)
    assert set(re.findall(r"JobState=(\w+)", words)) == {"COMPLETED"}, words
    states = [place / "run" / f"node-{task}" for task in range(TASKS)]
    kept = [CheckpointStore(state / FOLDER).latest()[0] for state in states]
    assert len({None if each is None else each.digest for each in kept}) == 1
    assert None not in kept


def check_lists(slurm: Slurm, place: Path, one: str, two: str) -> None:
    """Ask, in a heterogeneous job on these machines and in an array, for what the source of peers gives."""
    ask = f'{sys.executable} -c "{ASK}"'
    parts = ["-N1", "-w", one, ":", "-N1", "-w", two]
    found = peers_of(slurm, place, "het", parts, f"srun --het-group=0,1 {ask}")
    assert found == {f"{one}:7400 {two}:7400 True"}
    found = peers_of(slurm, place, "array", ["--array=0-1", "-N1"], f"sleep 5; {ask}; sleep 10")
    assert len(found) == 1
    assert len(found.pop().split()) == 3


def all_beyond(tasks: list[Task], counts: list[int]) -> bool:
    return all(task.steps() > count + 20 for task, count in zip(tasks, counts, strict=True))


def peers_of(slurm: Slurm, place: Path, name: str, options: list[str], command: str) -> set[str]:
    """Submit a job that asks for its peers; return what its tasks were answered."""
    script = place / f"{name}.sh"
    script.write_text(f"#!/bin/sh\n{command}\n")
    slurm.run("sbatch", "--wait", f"--output={place}/{name}-%j.out", *options, str(script))
    said = "".join(path.read_text() for path in place.glob(f"{name}-*.out"))
    print(said, flush=True)
    return {line.removeprefix("peers ") for line in said.splitlines() if line.startswith("peers ")}
