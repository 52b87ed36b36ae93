"""One side tells the other that something was published: an eventfd, in plain words.

It counts, it does not queue: any number of signals wake the sleeper once, none is lost, and neither call ever
blocks. The two processes share one open file, so a trainer that means harm could make it block; it runs as
the daemon's own user and could as well send SIGSTOP, so nothing guards against that.
"""

from __future__ import annotations

import contextlib
import os


class Wakeup:
    """An eventfd owned by this object; `close` may be called twice."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = (
            os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if descriptor is None else descriptor
        )

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._descriptor

    def signal(self) -> None:
        """Wake the other side; its counter being full means that it is awake already."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Forget the signals so far; look at the memory after this, not before."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
