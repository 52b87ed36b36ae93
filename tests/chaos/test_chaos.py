"""Short runs with two nodes that are interrupted: nothing is left behind. The long ones are `make chaos`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemons import until

NODES = 2


class Run:
    """`python -m tests.chaos` with its temporary files in a directory of the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._output = directory / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos", "--nodes", str(NODES), "--minutes", "5"],
                env={**os.environ, "TMPDIR": str(directory)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def trains(self) -> bool:
        notes = [file for file in self.directory.glob("*/*.batches") if file.stat().st_size]
        return len(notes) == NODES

    def processes(self, words: str = "") -> list[int]:
        """Daemons and trainers, known by the paths in their command lines, with these words in them too."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if str(self.directory) in command and words in command:
                    found.append(int(process.name))
        return found

    def mounts(self) -> list[str]:
        return [line for line in Path("/proc/mounts").read_text().splitlines() if str(self.directory) in line]

    def namespaces(self) -> list[str]:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if line.startswith(f"p2psgd{self.process.pid}")]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    try:
        until(run.trains, "both trainers are at work")
        assert len(run.processes()) == 2 * NODES
        assert len(run.mounts()) == NODES
        assert len(run.namespaces()) == NODES + 1  # and the switch
        yield run
        assert run.process.wait(60) == 1, run.output
        assert not run.processes()
        assert not run.mounts()
        assert not run.namespaces()
        assert "internal error" not in run.output
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.send_signal(signal.SIGTERM)
            run.process.wait(30)


@pytest.mark.root
def test_ctrl_c_ends_a_run_cleanly_with_an_account(run: Run) -> None:
    run.process.send_signal(signal.SIGINT)
    run.process.wait(60)
    assert "failed: interrupted" in run.output
    assert "NOT EQUAL" not in run.output


@pytest.mark.root
def test_a_second_ctrl_c_ends_a_run_at_once(run: Run) -> None:
    os.kill(run.processes("node --state")[0], signal.SIGSTOP)  # so that the first cannot come to its end
    run.process.send_signal(signal.SIGINT)
    until(lambda: "interrupted" in run.output, "the first is seen")
    run.process.send_signal(signal.SIGINT)
    run.process.wait(20)
    assert "killed: everything was ended at once" in run.output
