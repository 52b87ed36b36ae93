"""The N daemons of a local run as processes: started, watched, stopped.

Each is a real `p2psgd node` in a session of its own with its output in a log file. If this process dies,
whatever the cause, the kernel sends the daemons SIGTERM. Leaving the context kills what is still there, so
that no path out of a run leaves processes behind. This module does not talk to the daemons; see observer.py.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from p2psgd.errors import ExitCode, UsageError
from p2psgd.identity import lay_down_id
from p2psgd.local.leftovers import MARK, kill_marked, mark_of
from p2psgd.local.plan import Plan
from p2psgd.local.ports import LOOPBACK, free_ports
from p2psgd.ops.figures import printable

LOCK_NAME = "local.lock"
LOG_NAME = "log.txt"
LOG_TAIL_BYTES = 8_192
LOOK_S = 0.05
PR_SET_PDEATHSIG = 1  # linux/prctl.h
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


class LocalDaemon:
    """One daemon process; it may have ended, which `exit_code` and `ending` tell."""

    def __init__(self, name: str, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.directory = directory
        self.process = process

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def ending(self) -> str:
        """How the daemon ended, in words: `killed by signal 9`, `ended with exit code 70`."""
        code = self.exit_code
        if code is None:
            return "still running"
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    @property
    def last_words(self) -> str:
        """The last line in the log that is not empty, without the name of the program."""
        try:
            with (self.directory / LOG_NAME).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return printable(last.removeprefix("p2psgd: "))


class Cluster:
    """The daemons of a plan; a context manager that leaves no process behind."""

    def __init__(self, plan: Plan) -> None:
        self.daemons: list[LocalDaemon] = []
        self._plan = plan
        self._run = secrets.token_hex(16)
        self._lock = -1

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self.daemons:
            if daemon.exit_code is None:
                daemon.process.kill()
        kill_marked(self._run)
        for daemon in self.daemons:
            daemon.process.wait()
        if self._lock >= 0:
            os.close(self._lock)

    def start(self) -> None:
        """Write the list of peers and start every daemon.

        Raises UsageError if the state directory is in use or too few ports are free, OSError if a file cannot
        be written.
        """
        self._claim_state()
        ports = free_ports(self._plan.nodes)
        hosts = self._plan.state / "hosts.txt"
        hosts.write_text("".join(f"{LOOPBACK}:{port}\n" for port in ports))
        for index, (name, port) in enumerate(zip(self._plan.names, ports, strict=True)):
            directory = self._plan.directory(index)
            directory.mkdir(mode=0o700, exist_ok=True)
            lay_down_id(directory, node=index + 1, name=name)  # so a ring has the same order in every run
            command = [sys.executable, "-m", "p2psgd", "node", "--peers", str(hosts)]
            command += ["--listen", f"{LOOPBACK}:{port}", "--state", str(directory), "--name", name]
            command += ["--patience", f"{self._plan.patience_s:g}", *self._plan.record_options(index)]
            command += ["--log-format", "text"]  # the files are for people, and their last line is quoted
            command += [*self._plan.http_options(index), "--trainer", self._plan.trainer_command(index)]
            environment = self._environment() | {MARK: mark_of(self._run, name)}
            with (directory / LOG_NAME).open("ab") as log:
                log.truncate(0)
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=_end_with_parent(),  # noqa: PLW1509 (one system call, and no thread of ours runs)
                )
            self.daemons.append(LocalDaemon(name, directory, process))

    def discard(self, daemon: LocalDaemon) -> None:
        """Kill a daemon if it still runs, and whatever it leaves behind (its trainer)."""
        if daemon.exit_code is None:
            daemon.process.kill()
            daemon.process.wait()
        kill_marked(mark_of(self._run, daemon.name))

    def stop(self, limit_s: float) -> list[str]:
        """Ask all daemons to end, wait up to `limit_s`, kill the others; return the names of those killed."""
        for daemon in self.daemons:
            if daemon.exit_code is None:
                daemon.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + limit_s
        while any(daemon.exit_code is None for daemon in self.daemons) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        late = [daemon for daemon in self.daemons if daemon.exit_code is None]
        for daemon in late:
            daemon.process.kill()
            daemon.process.wait()
        kill_marked(self._run)
        return [daemon.name for daemon in late]

    def _claim_state(self) -> None:
        self._lock = os.open(self._plan.state / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"the state directory {self._plan.state} is in use: another `p2psgd local` runs in it",
                ExitCode.CONFIGURATION,
            ) from None

    def _environment(self) -> dict[str, str]:
        """Share the cores out among the trainers, unless the user has said how many threads to use."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("P2PSGD_CONTROL", "P2PSGD_STATE")
        }
        threads = str(max(1, len(os.sched_getaffinity(0)) // self._plan.nodes))
        return dict.fromkeys(THREAD_VARIABLES, threads) | environment


def _end_with_parent() -> Callable[[], None]:
    """Return a function for the new process to call before exec: SIGTERM when this process dies."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return arrange
