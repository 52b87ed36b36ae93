"""Remove what this bench leaves on the machine at its end, or what a killed one has left."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.rivals.processors import left_behind

MEMORY: Final = Path("/dev/shm")  # hosts that share a disk would wait for each other's writing
_DIRECTORY: Final = "p2psgd-rivals-"
_LOGS: Final = (".log", ".notes", ".job", ".peers")


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl+C does: hosts, namespaces and memory are given back."""

    def stop(number: int, frame: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # what has begun to be given back is given back whole
        sys.exit(
            f"ended by {signal.Signals(number).name}; what was measured is kept, and it goes on from there"
        )

    # One that is ignored stays so: nohup means it.
    numbers = [
        each
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def directory_of(way: str) -> Iterator[Path]:
    """For one run, in memory; of one that fails the logs stay, without weights and nodes' states."""
    path = Path(tempfile.mkdtemp(prefix=f"{_DIRECTORY}{os.getpid()}-{way}-", dir=MEMORY))
    try:
        yield path
    except Exception:
        _leave_logs(path)
        raise
    except BaseException:
        shutil.rmtree(path)
        raise
    shutil.rmtree(path)


def remove_leftovers() -> None:
    """Remove what hosts of an ended bench left: processes, which might train on, groups, namespaces and
    memory.
    """
    for processors in left_behind():
        print(f"removing {processors.name}, left by a bench that was killed", file=sys.stderr)
        processors.remove()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        name = line.split()[0] if line.split() else ""
        if (match := re.fullmatch(r"p2psgd(\d+)(h\d+|br)", name)) and not Path("/proc", match[1]).exists():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    for path in MEMORY.glob(f"{_DIRECTORY}*"):
        if not Path("/proc", path.name.removeprefix(_DIRECTORY).partition("-")[0]).exists():
            _leave_logs(path)


def _leave_logs(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix not in _LOGS:
            path.unlink()
