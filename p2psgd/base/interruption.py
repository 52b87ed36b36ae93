"""Ctrl+C, once and twice: the first asks a process to end in good order, the second ends it at once.

SIGTERM and SIGHUP (the terminal was closed) ask for that as well, and may come twice for one stop: Slurm
sends SIGTERM to a step, and then to each of its processes. What a process waits for may never come, such as
room while there is no majority, hence the second Ctrl+C. Where a shell has put the process into the
background, so that Ctrl+C does not reach it, a SIGTERM that comes AGAIN_S after the first signal is the
second.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# SIGHUP ends a trainer at once: its daemon has what it sent.
OF_A_TRAINER: Final = (signal.SIGINT, signal.SIGTERM)
AGAIN_S: Final = 3.0


def ignore(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing. Unlike SIG_IGN, what the process starts does not inherit that."""


class Interruption:
    """A context: the first of `signals` sets `requested`, a Ctrl+C after it raises KeyboardInterrupt
    once; main thread only.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self.requested = False  # somebody asked the run to stop
        self._signals = signals
        self._requested_at = 0.0
        self._ends = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        for number in self._signals:
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
        if not self.requested:
            self.requested, self._requested_at = True, time.monotonic()
        elif self._is_second(number) and not self._ends:
            self._ends = True  # later ones must not disturb the killing that this one begins
            raise KeyboardInterrupt

    def _is_second(self, number: int) -> bool:
        if number == signal.SIGTERM and signal.SIGINT not in self._previous:
            return time.monotonic() - self._requested_at >= AGAIN_S
        return number == signal.SIGINT
