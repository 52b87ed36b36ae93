"""The daemons of a local run as processes: their ports, their signals, and what they leave behind."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.base.formatting import printable
from p2psgd.cli.local.output import LOG_NAME, last_report
from p2psgd.cli.local.plan import Plan
from p2psgd.cli.node import check_state
from p2psgd.ipc.part import part_directory
from p2psgd.node.parts import read_parts
from p2psgd.observe.parts import GroupTrainer
from p2psgd.storage.identity import lay_down_id

# ----------------------------------------------------------------------------
# Free loopback ports for daemons that are only about to start.
#
# They come from below the kernel's range for outgoing connections: a port inside that range may be taken by
# an outgoing connection before its daemon listens, or worse, a daemon that dials a port where nobody listens
# yet may by chance be given that very port as its own end, and is then connected with itself.


LOOPBACK = "127.0.0.1"
PORT_LOW = 10_000
OUTGOING_DEFAULT_LOW = 32_768  # Linux's default when the file below cannot be read
OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, among: Iterable[int] | None = None) -> list[int]:
    """Return `count` distinct loopback ports on which nobody listens now, the first of those `among` them;
    UsageError if there are fewer.
    """
    if among is None:
        among = ports_to_listen_on()
        random.SystemRandom().shuffle(among)  # so that two runs started together hardly ever try the same
    found = list(itertools.islice(filter(_is_free, among), count))
    if len(found) < count:
        raise UsageError(
            f"only {len(found)} of {count} loopback ports from {PORT_LOW} up are free: end other servers",
            ExitCode.TEMPORARY,
        )
    return found


def free_blocks(count: int, ports: int) -> list[int]:
    """Return the first ports of `count` distinct blocks of this many, on which nobody listens now; UsageError
    if there are fewer.
    """
    firsts = [port for port in ports_to_listen_on() if port % ports == 0]
    random.SystemRandom().shuffle(firsts)
    free = (first for first in firsts if all(map(_is_free, range(first, first + ports))))
    found = list(itertools.islice(free, count))
    if len(found) < count:
        words = f"only {len(found)} of {count} blocks of {ports} loopback ports are free: end other servers"
        raise UsageError(words, ExitCode.TEMPORARY)
    return found


def ports_to_listen_on() -> list[int]:
    """Return the ports that no outgoing connection is given."""
    return list(range(PORT_LOW, _outgoing_low()))


def _outgoing_low() -> int:
    try:
        low = int(OUTGOING_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = OUTGOING_DEFAULT_LOW
    return low if low > PORT_LOW + 1_000 else 65_536  # a range that leaves nothing below it is no help


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


# ----------------------------------------------------------------------------
# No orphans, ever: find and kill what a local run started, also what slipped out of sight.
#
# A trainer may outlive its daemon, in a session or process group of its own, or have started processes
# itself. So every process of a run inherits a random mark in its environment, and a process with that mark
# belongs to the run. Processes that wipe their environment are not found; the daemons themselves are
# children and need no mark.


MARK = "P2PSGD_LOCAL_RUN"


def mark_of(run: str, node: str) -> str:
    """Return the value of the environment variable MARK for all processes of one node."""
    return f"{run}/{node}/"  # the last slash keeps node-1 apart from node-10


def kill_marked(prefix: str) -> int:
    """Kill every process whose mark begins with `prefix` (a run, or a run and a node); return how many."""
    killed = 0
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal() and int(directory.name) != os.getpid():
            killed += _kill_if_marked(int(directory.name), prefix)
    return killed


def _kill_if_marked(process: int, prefix: str) -> bool:
    try:
        descriptor = os.pidfd_open(process)
    except OSError:
        return False
    try:
        # Read after the descriptor was opened, which stays with this process whatever becomes of its number.
        if not _bears(process, prefix):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _bears(process: int, prefix: str) -> bool:
    wanted = f"{MARK}={prefix}".encode()
    environment = Path(f"/proc/{process}/environ").read_bytes()
    return any(entry.startswith(wanted) for entry in environment.split(b"\0"))


# ----------------------------------------------------------------------------
# The N daemons of a local run as processes: started, watched, stopped.
#
# Each is a real `p2psgd node` in a session of its own with its output in a log file, and ends with this
# process, whatever its end (child.py). Leaving the context kills what is still there, so that no path out of
# a run leaves processes behind. This module does not talk to the daemons; see run.py.


LOCK_NAME = "local.lock"
LOG_TAIL_BYTES = 8_192
LOOK_S = 0.05
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def spawn(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a daemon in a session of its own; it prints to a new log in its state directory."""
    with (directory / LOG_NAME).open("ab") as log:
        log.truncate(0)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


class LocalDaemon:
    """A daemon process; it may have ended, which `exit_code` and `ending` show.

    Where nodes train a model in parts it is the daemon of `part`, and `process` is what runs all daemons of
    the `node`, whose directory is `home`.
    """

    def __init__(
        self, node: str, home: Path, process: subprocess.Popen[bytes], part: int | None = None
    ) -> None:
        self.node, self.home, self.process, self.part = node, home, process, part
        self.name = node if part is None else f"{node}.{part}"
        self.directory = home if part is None else part_directory(home, part)

    @property
    def group_trainer(self) -> GroupTrainer | None:
        """The trainer command of all parts of the node; None if the model is whole, or nothing is known."""
        running = None if self.part is None else read_parts(self.home)
        return None if running is None else running.trainer

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def ending(self) -> str:
        """Return in words how the daemon ended: `killed by signal 9`, `ended with exit code 70`."""
        code = self.exit_code
        if code is None:
            return "still running"
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    @property
    def last_words(self) -> str:
        """The last line in the log that is not empty, without the name of the program."""
        try:
            with (self.home / LOG_NAME).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return printable(last.removeprefix("p2psgd: "))

    @property
    def report(self) -> list[str]:
        """The traceback, or the last lines, of the node's trainer."""
        return last_report(self.home / LOG_NAME)


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
        parts = self._plan.parts
        ports = free_ports(self._plan.nodes) if parts is None else free_blocks(self._plan.nodes, parts)
        for index in range(self._plan.nodes):  # before anything is made there
            check_state(self._plan.directory(index), parts)
        hosts = self._plan.state / "hosts.txt"
        hosts.write_text("".join(f"{LOOPBACK}:{port}\n" for port in ports))
        for index, (name, port) in enumerate(zip(self._plan.names, ports, strict=True)):
            directory = self._plan.directory(index)
            directory.mkdir(mode=0o700, exist_ok=True)
            places = [directory] if parts is None else [part_directory(directory, k) for k in range(parts)]
            for place in places:  # so a ring has the same order in every run
                place.mkdir(mode=0o700, exist_ok=True)
                lay_down_id(place, node=index + 1, name=name)
            command = [sys.executable, "-m", "p2psgd.cli.child", str(os.getpid()), ""]
            command += ["node", "--peers", str(hosts)]
            command += ["--listen", f"{LOOPBACK}:{port}", "--state", str(directory), "--name", name]
            command += ["--failure-timeout", f"{self._plan.failure_timeout_s:g}"]
            command += [] if parts is None else ["--parts", str(parts)]
            command += ["--log-format", "text"]  # the files are for people, and their last line is quoted
            command += [*self._plan.http_options(index), "--trainer", self._plan.trainer_command(index)]
            environment = self._environment() | {MARK: mark_of(self._run, name)}
            process = spawn(command, directory, environment)
            numbers = [None] if parts is None else range(parts)
            self.daemons += [LocalDaemon(name, directory, process, part) for part in numbers]

    def discard(self, daemon: LocalDaemon) -> None:
        """Kill a daemon if it still runs, and whatever it leaves behind (its trainer)."""
        if daemon.exit_code is None:
            daemon.process.kill()
            daemon.process.wait()
        kill_marked(mark_of(self._run, daemon.node))

    def stop(self, limit_s: float) -> list[str]:
        """Ask all daemons to end, wait up to `limit_s`, kill the others; return the names of those killed."""
        for process in {daemon.process.pid: daemon.process for daemon in self.daemons}.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
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
        threads = str(max(1, len(os.sched_getaffinity(0)) // len(self._plan.replicas)))
        return dict.fromkeys(THREAD_VARIABLES, threads) | environment
