"""A daemon that tells which files its loop opens: `python -m tests.node.opening_daemon node ...`.

Each file that the main thread opens, lists or imports is a line of the file that $OPENED names. While there
is a file of that name with `.broken` behind it, none of them can be read.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from typing import Any

from p2psgd.cli.app import main

WATCHED = {"open", "os.listdir", "os.scandir", "import"}


def watch(place: str) -> None:
    """From now on."""
    descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    loop = threading.get_ident()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in WATCHED and threading.get_ident() == loop:
            os.write(descriptor, f"{event} {arguments[0]!r}\n".encode())
            if os.path.exists(f"{place}.broken"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(arguments[0]))

    sys.addaudithook(note)


if __name__ == "__main__":
    watch(os.environ["OPENED"])
    main()
