"""`p2psgd local` as a process of its own, the way people start it, and a look at its nodes from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from p2psgd.base.errors import DaemonLost, UsageError
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests import DEADLINE_S
from tests.cli.local.conditions import wait_until


class Run:
    """One run in `directory`; end it with `close()`."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.state = directory / "state"
        self.report_path = directory / "report.json"
        self._output_path = directory / "output.txt"
        command = [sys.executable, "-m", "p2psgd", "local", "--report", str(self.report_path)]
        with self._output_path.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--state", str(self.state), *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
            )

    @property
    def output(self) -> str:
        """Everything it has printed so far."""
        return self._output_path.read_text()

    def ends(self, limit_s: float = DEADLINE_S) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end within {limit_s} s; it printed:\n{self.output}") from error

    def report(self) -> dict[str, Any]:
        """Return the report it has written."""
        report: dict[str, Any] = json.loads(self.report_path.read_text())
        return report

    def status(self, index: int) -> dict[str, Any]:
        """Return a node's status; an empty one while it does not answer."""
        return self.status_at(Path(f"node-{index}"))

    def status_at(self, place: Path) -> dict[str, Any]:
        """Return the status of the daemon with this state directory, as it is called in that of the run."""
        try:
            with ControlClient(control_path(self.state / place), timeout_s=30.0) as client:
                status: dict[str, Any] = client.request("status")["status"]
        except (UsageError, DaemonLost):
            return {}
        return status

    def steps(self, index: int) -> int:
        """Return how far a node has trained."""
        return int(self.status(index).get("trainer", {}).get("steps", 0))

    def wait_for_training(self, index: int, steps: int = 1) -> dict[str, Any]:
        """Wait until a node has trained so many mini-batches and return its status then."""
        wait_until(lambda: self.steps(index) >= steps or self.process.poll() is not None, "training")
        assert self.process.poll() is None, self.output
        return self.status(index)

    def close(self) -> None:
        """End the run if it still goes on, and fail if it left any process behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            wait_until(lambda: not self.processes(), "the daemons to follow the end of the run")
        left = self.processes()
        for process in left:
            os.kill(process, signal.SIGKILL)
        assert not left, f"processes left behind; the run printed:\n{self.output}"

    def processes(self) -> list[int]:
        """Return the run's daemons and trainers: environment or command names its state."""
        mark = os.fsencode(self.state)
        return [
            int(directory.name)
            for directory in Path("/proc").iterdir()
            if directory.name.isdecimal() and mark in _command_and_environment(directory)
            if int(directory.name) not in (os.getpid(), self.process.pid)
        ]


def _command_and_environment(directory: Path) -> bytes:
    try:
        return (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
    except OSError:
        return b""
