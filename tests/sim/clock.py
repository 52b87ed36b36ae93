"""Virtual time: a queue of actions, run in the order of their times, then of their being planned."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Seconds since the beginning of a simulated run. Nothing planned is taken back: actions look for
    themselves whether they are still wanted.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Plan an action for a time that has not passed."""
        self._count += 1
        heappush(self._planned, (when, self._count, action, arguments))

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Plan an action for later."""
        self._count += 1
        heappush(self._planned, (self.now + delay_s, self._count, action, arguments))

    def run_until(self, end: float) -> None:
        """Let time pass, with all that is planned for it."""
        planned = self._planned
        while planned and planned[0][0] <= end:
            when, _, action, arguments = heappop(planned)
            self.now = when
            action(*arguments)
        self.now = end
