"""No orphans, ever: find and kill what a local run started, also what slipped out of sight.

A trainer may outlive its daemon, in a session or process group of its own, or have started processes itself.
So every process of a run inherits a random mark in its environment, and whoever bears the mark belongs to the
run. Processes that wipe their environment are not found; the daemons themselves are children and need no
mark.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

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
