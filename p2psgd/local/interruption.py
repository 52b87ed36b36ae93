"""Ctrl+C, once and twice: the first asks the run to stop and be compared, the second ends it at once.

SIGTERM and SIGHUP (the terminal was closed) count like Ctrl+C. Daemons and trainers run in sessions of their
own, so a terminal's Ctrl+C reaches this process alone, which decides what it means for them.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """A context: the first signal sets `requested`, the second raises KeyboardInterrupt; main thread only."""

    def __init__(self) -> None:
        self._count = 0
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self._count > 0

    def __enter__(self) -> Interruption:
        for number in SIGNALS:
            previous = signal.getsignal(number)
            if previous is not signal.SIG_IGN:  # nohup, or a shell's background job: stays ignored
                self._previous[number] = previous
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 2:  # later ones must not disturb the killing that the second one began
            raise KeyboardInterrupt
