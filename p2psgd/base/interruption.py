"""Ctrl+C, once and twice: the first asks a process to end in good order, the second ends it at once.

SIGTERM and SIGHUP (the terminal was closed) ask for that as well, and may come twice for one stop: Slurm
sends SIGTERM to a step, and then to each of its processes. What a process waits for may never come, such as
room while there is no majority, hence the second Ctrl+C.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """A context: the first of these signals sets `requested`, a Ctrl+C after it raises KeyboardInterrupt
    once; main thread only.
    """

    def __init__(self) -> None:
        self.requested = False  # somebody asked the run to stop
        self._ends = False
        self._previous: dict[signal.Signals, Any] = {}

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
        if self.requested and number == signal.SIGINT and not self._ends:
            self._ends = True  # later ones must not disturb the killing that this one begins
            raise KeyboardInterrupt
        self.requested = True
