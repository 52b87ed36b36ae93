"""`python -m p2psgd.cli.child PARENT SCRATCH ...`: the command `p2psgd ...`, which ends with its parent.

PARENT is the process that has started this one, or `FIRST,PARENT` where another one has started that. Once
one of them has ended, however that came, this process gets SIGTERM, and deletes SCRATCH at its end, a
directory ("": none).

A thread watches a pidfd. PR_SET_PDEATHSIG would need code between fork and exec, where the parent's other
threads may hold locks, and it goes by the thread that started the child, which may end before its process.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading

from p2psgd.cli.app import main


def run() -> None:
    """Run the command of this process's arguments, unless the parent is gone already."""
    followed, scratch = [int(each) for each in sys.argv.pop(1).split(",")], sys.argv.pop(1)
    parent = followed[-1]
    try:
        alive = [os.pidfd_open(each) for each in followed]
    except ProcessLookupError:
        return
    if os.getppid() != parent:  # its number is another process's by now
        return
    threading.Thread(target=_follow, args=(alive,), daemon=True).start()
    try:
        main()
    finally:
        if scratch and os.getppid() != parent:
            shutil.rmtree(scratch, ignore_errors=True)


def _follow(alive: list[int]) -> None:
    select.select(alive, [], [])
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    run()
