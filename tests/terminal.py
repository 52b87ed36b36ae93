"""A command on a terminal of its own, which a test reads and types on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType
from typing import Any, Self

from tests import DEADLINE_S

_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")


# The terminal belongs to this process, which stays: when its owner ends, the kernel drops what was not read.
_OWNER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, lambda *_: None)
told = int(sys.argv[1])
process = subprocess.Popen(sys.argv[2:])
os.write(told, b"%d\\n" % process.pid)
os.write(told, b"%d\\n" % process.wait())
signal.pause()
"""


class Terminal:
    """Starts `command` with its input and output on a terminal; `text` is all that it has written."""

    def __init__(self, command: list[str], *, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self._above, self._below = pty.openpty()
        self.text = ""
        self.resize(columns, rows)
        self.modes = self._modes()
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        told, telling = os.pipe()
        self._owner = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(telling), *command],
            stdin=self._below,
            stdout=self._below,
            stderr=self._below,
            env={**inherited, "TERM": "xterm-256color", "LANG": "C.UTF-8", **environment},
            pass_fds=[telling],
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (one system call)
        )
        os.close(telling)
        self._told = os.fdopen(told)
        self.pid = int(self._told.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._owner.pid, signal.SIGKILL)
        self._owner.wait(DEADLINE_S)
        self._told.close()
        os.close(self._above)
        os.close(self._below)

    def type(self, keys: bytes) -> None:
        os.write(self._above, keys)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._above, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, words: str, *, timeout_s: float = DEADLINE_S) -> None:
        """Wait until something new with these words is written."""
        end, start = time.monotonic() + timeout_s, len(self.text)
        while words not in plain(self.text[start:]):
            assert time.monotonic() < end, f"{words!r} is not within {plain(self.text[-3000:])}"
            self._read(0.2)

    def wait(self) -> int:
        """For its end; the exit code."""
        end = time.monotonic() + DEADLINE_S
        while not select.select([self._told], [], [], 0)[0]:
            assert time.monotonic() < end
            self._read(0.1)
        while self._read(0.1):
            pass
        return int(self._told.readline())

    def is_restored(self) -> bool:
        """The terminal is as it was: its modes, the screen that was there before, the cursor."""
        shown = self.text.rfind("\x1b[?25h") > self.text.rfind("\x1b[?25l")
        left = self.text.rfind("\x1b[?1049l") > self.text.rfind("\x1b[?1049h")
        return self._modes() == self.modes and shown and left

    def frame(self) -> list[str]:
        """The lines of the last whole picture, as soon as there is one."""
        end = time.monotonic() + DEADLINE_S
        while not any(pictures := [plain(each) for each in self.text.split("\x1b[H")[1:-1]]):
            assert time.monotonic() < end, self.text[-3000:]
            self._read(0.2)
        return pictures[-1].replace("\r", "").split("\n")

    def _modes(self) -> list[Any]:
        return termios.tcgetattr(self._below)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._above], [], [], timeout_s)[0]:
            return False
        self.text += os.read(self._above, 65536).decode(errors="replace")
        return True


def plain(text: str) -> str:
    """Without what moves cursors and paints."""
    return _SEQUENCE.sub("", text)
