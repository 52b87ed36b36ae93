"""Work that a thread does on the disk, and how long the disk has been at it.

A disk may hang: a volume on a network that is gone, a device that answers nothing. The thread then waits in
the kernel, where no signal reaches it, and all that can be done is to say so. Every piece of work has a
thread of its own, which the process does not wait for when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec, TypeVar

from p2psgd.ops import numerals
from p2psgd.threads import in_daemon_thread

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

OWN_UPDATES: Final = "this node's own updates"


class DiskWork:
    """What is under way; more than `limit_s` seconds are too long."""

    def __init__(self, limit_s: float, own_busy_since: Callable[[], float | None]) -> None:
        """`own_busy_since`: when the thread of the own updates began what it is at, monotonic."""
        self._limit_s = limit_s
        self._own_busy_since = own_busy_since
        self._begun: dict[object, tuple[float, str]] = {}

    async def do(
        self,
        what: str,
        work: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Do it in a thread; `what` is how people call it."""
        key = object()
        self._begun[key] = time.monotonic(), what
        try:
            return await in_daemon_thread(what, partial(work, *args, **kwargs))
        finally:
            del self._begun[key]

    def overdue(self, now: float) -> str:
        """One sentence on what the disk has been at for too long; empty if there is nothing."""
        since, _ = self._oldest(now)
        return self.under_way(now) if now - since > self._limit_s else ""

    def under_way(self, now: float) -> str:
        """One sentence on what the disk has been at the longest."""
        since, what = self._oldest(now)
        return f"the disk has been at {what} for {numerals.duration(now - since)}"

    def _oldest(self, now: float) -> tuple[float, str]:
        own = self._own_busy_since()
        begun = [*self._begun.values(), *([] if own is None else [(own, OWN_UPDATES)])]
        return min(begun, default=(now, "nothing"))
