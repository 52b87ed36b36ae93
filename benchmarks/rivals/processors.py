"""A host's share of this machine's processors: a control group that all its processes are born into."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OLD: Final = ROOT / "cpu"  # of version 1
PERIOD_US: Final = 20_000  # shorter than a mini-batch, so that a host is slow rather than now and then away
BUSY_MAX: Final = 0.9  # of the machine, for all hosts: the rest evaluates


class NoControlGroups(Exception):
    """This machine cannot say how much of a processor a host gets."""


class Processors:
    """Made with its directory, unless that is `made` already; `remove` ends all that runs in it."""

    def __init__(self, name: str, *, made: bool = False) -> None:
        self.name = name
        self._new = "cpu" in _words(ROOT / "cgroup.controllers")
        if not self._new and not (OLD / "cgroup.procs").exists():
            raise NoControlGroups(f"hosts need control groups with the controller cpu: mount one at {OLD}")
        if self._new:
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        self._directory = (ROOT if self._new else OLD) / name
        if not made:
            self._directory.mkdir()

    @property
    def within(self) -> list[str]:
        """Return the prefix of a command that runs on these processors."""
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", enter, str(self._directory / "cgroup.procs")]

    def limit(self, processors: float) -> None:
        """Give it so many from now on."""
        quota = round(processors * PERIOD_US)
        if self._new:
            (self._directory / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self._directory / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
            (self._directory / "cpu.cfs_quota_us").write_text(f"{quota}")

    def members(self) -> list[int]:
        """Ids of the processes in it."""
        return [int(word) for word in _words(self._directory / "cgroup.procs")]

    def kill(self) -> None:
        """SIGKILL to all, until none is left."""
        deadline = time.monotonic() + 30
        while members := self.members():
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            assert time.monotonic() < deadline, f"processes {members} outlive SIGKILL"
            time.sleep(0.02)

    def remove(self) -> None:
        self.kill()
        self._directory.rmdir()


def left_behind() -> list[Processors]:
    """Return the groups named after a process that has ended, as `tests.lan` names its hosts."""
    names = [path.name for root in (ROOT, OLD) if root.is_dir() for path in root.iterdir()]
    matches = [match for name in names if (match := re.fullmatch(r"p2psgd(\d+)h\d+", name))]
    return [Processors(each[0], made=True) for each in matches if not Path("/proc", each[1]).exists()]


def share(hosts: int) -> float:
    """Return each host's share of the processors."""
    return BUSY_MAX * len(os.sched_getaffinity(0)) / hosts


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
