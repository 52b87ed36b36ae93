"""A whole terminal to draw on, which is left as it was however the command ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

QUIT: Final = frozenset(b"qQ\x03\x04")  # Ctrl+C and Ctrl+D where they come as keys
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
WAIT_S: Final = 0.2  # until the size of the terminal is looked at again


class Screen:
    """A context, for the main thread. SIGTERM and SIGHUP end it by SystemExit."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # No refresh thread: whoever draws says when.
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._keys: int | None = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in ENDING:
            self._handlers[number] = signal.signal(number, _end)
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
            mode = termios.tcgetattr(self._keys)
            mode[6][termios.VSUSP] = b"\0"  # Ctrl+Z would leave the drawing on the terminal
            termios.tcsetattr(self._keys, termios.TCSADRAIN, mode)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            if self._before and self._keys is not None:
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)
        with contextlib.suppress(OSError):
            self._live.stop()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, now."""
        return self._console.size.width, self._console.size.height

    def show(self, lines: Sequence[Text]) -> None:
        """Draw these lines and nothing else."""
        for line in lines:
            line.no_wrap = True
        self._live.update(Group(*lines), refresh=True)

    def wants_end(self, timeout_s: float = WAIT_S) -> bool:
        """Wait so long for a key; whether it is one that ends the command."""
        if self._keys is None:
            select.select([], [], [], timeout_s)
            return False
        if not select.select([self._keys], [], [], timeout_s)[0]:
            return False
        pressed = os.read(self._keys, 64)
        if not pressed:
            self._keys = None  # nobody types any more
        return bool(QUIT & set(pressed))


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
