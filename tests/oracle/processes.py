"""Runs p2psgd as people start it, for the parts that need real processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

P2PSGD: Final = (sys.executable, "-m", "p2psgd")
LIMIT_S: Final = 300.0
POLL_S: Final = 0.2


def run(folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command to its end and return what it printed on standard output."""
    done = subprocess.run(
        [*P2PSGD, *words],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode not in codes:
        raise RuntimeError(f"p2psgd {shlex.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return an environment without variables of p2psgd, in which BLAS computes in one thread."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("P2PSGD_")}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}


def run_local(folder: Path, *options: str) -> dict[str, Any]:
    """Run a local cluster and return its report."""
    report = folder / "report.json"
    run(folder, "local", "--report", str(report), *options)
    loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


class Node:
    """A running `p2psgd node`; its state directory and log are in `folder`."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.state = folder / name
        self._log = folder / f"{name}.log"
        self._folder = folder
        words = ("--state", str(self.state), "--name", name, "--failure-timeout", "1", *options)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*P2PSGD, "node", *words],
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ask(self, command: str, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command that asks this node."""
        return run(self._folder, command, "--state", str(self.state), *words, codes=codes)

    def status(self) -> dict[str, Any]:
        """Return the status; an empty one while the node does not answer."""
        text = self.ask("status", "--json", codes=(0, 75))
        status: dict[str, Any] = json.loads(text) if text else {}
        return status

    def wait(self, what: Callable[[dict[str, Any]], object], words: str) -> dict[str, Any]:
        """Wait until a status is so, and return it."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            status = self.status()
            if status and what(status):
                return status
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{words} did not happen:\n{self._log.read_text()}")
            time.sleep(POLL_S)

    def wait_for_end(self) -> None:
        """Wait until the node ends by itself."""
        self._process.wait(LIMIT_S)

    def stop(self) -> None:
        """Stop the node; kill it if it does not end."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def nodes(*started: Node) -> Iterator[tuple[Node, ...]]:
    """Stop the nodes at the end."""
    try:
        yield started
    finally:
        for node in started:
            node.stop()
