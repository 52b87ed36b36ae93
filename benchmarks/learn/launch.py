"""Runs one case: starts its processes, waits for them, and reads what they have found."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.learn.cases import Case
from benchmarks.learn.job import Answer, Job
from benchmarks.learn.results import Result, surroundings
from p2psgd.cli.local.cluster import THREAD_VARIABLES

ROOT: Final = Path(__file__).parents[2]
TRAINING_MAX_S: Final = 3600.0
ENDING_S: Final = 10.0
LOOK_S: Final = 0.1
FAILURE_TIMEOUT_S: Final = 20.0  # eight nodes on two cores: none is dead for being slow


def run(case: Case, rate: float) -> Result:
    """In a directory of its own, which stays where something fails."""
    directory, load = Path(tempfile.mkdtemp(prefix="p2psgd-learn-")), os.getloadavg()[0]
    job = Job(directory=str(directory), **case.job(rate))
    path, begin = job.write(), time.monotonic()
    trainer = [sys.executable, "-m", "benchmarks.learn.trainer", str(path)]
    match job.method:
        case "one":
            commands = [trainer]
        case "p2psgd" | "p2psgd-slow":
            commands = [_local(job.nodes, trainer, directory)]
        case _:
            commands = [[*trainer, f"{rank}"] for rank in range(job.nodes)]
    try:
        _run_all(commands, directory)
        answer = Answer.read(directory)
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    except BaseException:
        print(f"{case.name} failed; the logs are in {directory}", file=sys.stderr)
        raise
    sent = _sent_bytes(directory) if answer.sent_bytes is None else answer.sent_bytes
    shutil.rmtree(directory)
    return Result(
        digest=case.digest(rate),
        rate=rate,
        loss=answer.loss,
        accuracy=answer.accuracy,
        sent_bytes=sent,
        weights=answer.weights,
        steps=answer.steps,
        ran_s=round(time.monotonic() - begin, 1),
        load=round(load, 2),
        at=time.strftime("%Y-%m-%d", time.gmtime()),
        where=surroundings(),
    )


def _local(nodes: int, trainer: Sequence[str], directory: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "p2psgd", "local", "-n", f"{nodes}"),
        *("--trainer", shlex.join(trainer), "--failure-timeout", f"{FAILURE_TIMEOUT_S:g}"),
        *("--state", str(directory / "state"), "--report", str(directory / "report.json")),
    ]


def _sent_bytes(directory: Path) -> float:
    """Return the mean over nodes of all that their sockets sent, whatever it was for."""
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    assert report["replicas_identical"], "the replicas are not identical"
    return mean(float(node["bytes_sent"]) for node in report["per_node"])


def _run_all(commands: Sequence[Sequence[str]], directory: Path) -> None:
    """Run the processes beside each other; AssertionError with the last words of the first that fails."""
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with (directory / f"output-{number}.txt").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        cwd=ROOT,
                    )
                )
        deadline = time.monotonic() + TRAINING_MAX_S
        while any(process.poll() is None for process in processes):
            assert time.monotonic() < deadline, f"no end within {TRAINING_MAX_S:.0f} s"
            for number, process in enumerate(processes):
                _check(process.poll(), directory / f"output-{number}.txt")
            time.sleep(LOOK_S)
        for number, process in enumerate(processes):
            _check(process.returncode, directory / f"output-{number}.txt")
    finally:
        for process in processes:
            _end(process)


def _check(code: int | None, output: Path) -> None:
    if code:
        words = output.read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"a process ended with {code}:\n{words[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it if it still runs; `p2psgd local` ends its own processes."""
    for end in (process.terminate, process.terminate, process.kill):  # twice: at once
        if process.poll() is None:
            end()
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
