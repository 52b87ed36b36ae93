"""Real daemons in real processes, for tests that drive `p2psgd node` as a user would."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from p2psgd.base.errors import P2psgdError
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.listener import control_path
from tests import DEADLINE_S

P2PSGD = [sys.executable, "-m", "p2psgd"]
PACED = [
    sys.executable,
    "-P",
    str(Path(__file__).with_name("paced_trainer.py")),
]  # -P: tests/torch is not torch


def clock_behind(folder: Path) -> dict[str, str]:
    """The environment of a daemon whose wall clock stands in the year 2001."""
    place = folder / "clock"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text("import time\ntime.time_ns = lambda: 10**18\n")
    return {"PYTHONPATH": str(place)}


def trainer(recipe: str = "digits", *options: str, program: list[str] = P2PSGD) -> str:
    return " ".join([*program, "train", "--recipe", recipe, *options])


class Daemon:
    """One `p2psgd node` process and what can be asked of it. Its output goes to `log`, by default beside the
    state directory, as text unless the options say otherwise.
    """

    def __init__(
        self,
        state: Path,
        *options: str,
        within: list[str] | None = None,
        log: Path | None = None,
        environment: dict[str, str] | None = None,
        program: list[str] = P2PSGD,
    ) -> None:
        state.parent.mkdir(parents=True, exist_ok=True)
        self.state = state
        self.log = log or state.with_suffix(".log")
        form = [] if "--log-format" in options else ["--log-format", "text"]
        names = ["--state", str(state), "--name", state.name]
        command = [*(within or []), *program, "node", *names, *form, *options]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environment or {})},
            )

    def status(self, timeout_s: float = 30) -> dict[str, Any] | None:
        """The status, or None while the daemon does not answer."""
        try:
            with ControlClient(control_path(self.state), timeout_s=timeout_s) as client:
                answer: dict[str, Any] = client.request("status")["status"]
                return answer
        except P2psgdError:
            return None

    def run(self) -> dict[str, Any] | None:
        """The run it trains, once it knows."""
        run: dict[str, Any] | None = (self.status() or {}).get("run")
        return run

    def linked(self) -> set[str]:
        status = self.status()
        peers = [] if status is None else status["peers"]
        return {peer["node"] for peer in peers if peer["state"] == "connected"}

    def finished(self) -> bool:
        status = self.status()
        return status is not None and bool(status["trainer"]["finished"])

    def replica(self) -> tuple[int, bytes]:
        """Digest and bytes of the replica."""
        with ControlClient(control_path(self.state), timeout_s=30) as client:
            answer, descriptors = client.request_with_fds("replica")
        try:
            with mmap.mmap(descriptors[0], 4 * answer["weights"], prot=mmap.PROT_READ) as memory:
                return answer["digest"], memory[:]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def scrub(self) -> None:
        """Have the replica compared with its digest soon."""
        with ControlClient(control_path(self.state), timeout_s=30) as client:
            client.request("digest", scrub=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def words(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def all_stopped(daemons: list[Daemon]) -> Iterator[list[Daemon]]:
    """No process outlives the test; their logs are shown if it fails."""
    try:
        yield daemons
    except BaseException:
        for daemon in daemons:
            sys.stderr.write(f"--- {daemon.state.name}\n{daemon.words()[-3000:]}\n")
        raise
    finally:
        for daemon in daemons:
            if daemon.process.poll() is None:
                daemon.process.terminate()
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.process.wait(45)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait(DEADLINE_S)


def until(condition: Callable[[], Any], words: str, *, timeout_s: float = DEADLINE_S) -> Any:
    """Wait for a condition to become true and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {words}"
        time.sleep(0.05)
    return value


def assert_replicas_identical(daemons: list[Daemon], *, timeout_s: float = DEADLINE_S) -> dict[str, int]:
    """Wait for equal frontiers, then compare digests and bytes; returns the common frontier by origin."""

    def frontiers() -> list[dict[str, int]]:
        statuses = [daemon.status() for daemon in daemons]
        return [
            {f"{row['id']}/{row['incarnation']}": row["sequence"] for row in status["frontier"]}
            for status in statuses
            if status is not None
        ]

    def equal() -> bool:
        rows = frontiers()
        return len(rows) == len(daemons) and all(row == rows[0] for row in rows)

    until(equal, "equal frontiers", timeout_s=timeout_s)
    replicas = [daemon.replica() for daemon in daemons]
    assert all(replica == replicas[0] for replica in replicas), [digest for digest, _ in replicas]
    return frontiers()[0]
