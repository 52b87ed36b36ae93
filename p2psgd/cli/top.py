"""`p2psgd top`: one node's status on a whole terminal, asked again and again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from p2psgd.base import formatting
from p2psgd.base.errors import ExitCode, P2psgdError, UsageError
from p2psgd.base.formatting import print_text
from p2psgd.cli.top_picture import Picture, Recent, draw, own_waits
from p2psgd.ipc.client import ControlClient
from p2psgd.observe.status import NodeStatus, read_status

# ----------------------------------------------------------------------------
# Asking a node for its status again and again, over its control socket or over HTTP, in a thread of its own:
# the screen never waits for an answer.


HTTP_TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
_URL: Final = re.compile(r"(http://(?:\[[\w:.%-]+\]|[\w.-]+)(?::\d{1,5})?)(?:/[^?#]*)?", re.ASCII)
SILENT_S: Final = 3.0  # beyond the usual pause; a shorter silence is no news


class ControlSource:
    """The status over a control socket; connects anew after the daemon has gone. Raises P2psgdError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._client: ControlClient | None = None

    def __call__(self) -> NodeStatus:
        try:
            if self._client is None:
                self._client = ControlClient(self._path)
            return read_status(self._client.request("status")["status"])
        except (P2psgdError, OSError):
            if self._client is not None:
                self._client.close()
                self._client = None
            raise


class HttpSource:
    """The same from where `--http` shows a node; UsageError if that is no address. Raises P2psgdError."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise UsageError(f"--url {url!r:.80} is no address of a node: give http://127.0.0.1:9400")
        self._url = f"{found[1]}/status.json"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __call__(self) -> NodeStatus:
        try:
            with self._opener.open(self._url, timeout=HTTP_TIMEOUT_S) as answer:
                fields = json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                raise UsageError(f"{self._url}: {error.code} {error.reason}", ExitCode.TEMPORARY) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            why = str(getattr(reason, "strerror", None) or reason).lower()
            raise UsageError(f"no node answers at {self._url}: {why}", ExitCode.TEMPORARY) from None
        except (http.client.HTTPException, ValueError, RecursionError):
            fields = None
        if not isinstance(fields, Mapping) or not isinstance(fields.get("node"), str):
            raise UsageError(f"what answers at {self._url} is no p2psgd node", ExitCode.DATA)
        return read_status(fields)


@dataclass(frozen=True, slots=True)
class Heard:
    """The last status, when it came (seconds, monotonic), and how many there were; what has gone wrong since,
    and since when.
    """

    status: NodeStatus | None = None
    at: float = 0.0
    count: int = 0
    error: Exception | None = None
    error_since: float = 0.0
    error_clock: float = 0.0  # the same as Unix time

    def trouble(self, now: float, *, every_s: float) -> str:
        """Why the status is an old one, in a sentence; empty if it is not."""
        if self.error is not None:
            since = time.strftime("%H:%M:%SZ", time.gmtime(self.error_clock))
            lasts = formatting.duration(now - self.error_since)
            return f"the daemon is gone since {since} ({lasts}), trying again"
        if self.status is not None and now - self.at > every_s + SILENT_S:
            return f"the daemon has not answered for {formatting.duration(now - self.at)}"
        return ""


class Asker:
    """Asks `source` every `every_s` seconds as long as it is open; `heard` is what has come of it so far."""

    def __init__(self, source: Callable[[], NodeStatus], *, every_s: float) -> None:
        self.heard = Heard()  # replaced whole: one thread writes, others read
        self._source = source
        self._every_s = every_s
        self._over = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="asking", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()  # a question may still be open; the thread ends with it, or with this process

    def next(self, heard: Heard, timeout_s: float) -> Heard:
        """Wait until there is more than `heard`, for so long; return what there is."""
        if self.heard is heard:
            self._changed.wait(timeout_s)
        self._changed.clear()
        return self.heard

    def _ask_on(self) -> None:
        while True:
            self.heard = self._ask(self.heard)
            self._changed.set()
            if self._over.wait(self._every_s):
                return

    def _ask(self, before: Heard) -> Heard:
        try:
            status = self._source()
        except (P2psgdError, OSError) as error:
            since, clock = (before.error_since, before.error_clock) if before.error else _now()
            return Heard(before.status, before.at, before.count, error, since, clock)
        return Heard(status, time.monotonic(), before.count + 1)


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()


def raise_error(heard: Heard) -> None:
    """At the beginning, what goes wrong is raised at once: a P2psgdError."""
    match heard.error:
        case None:
            return
        case P2psgdError():
            raise heard.error
        case error:
            raise UsageError(f"the node cannot be asked: {error}", ExitCode.TEMPORARY)


# ----------------------------------------------------------------------------
# A whole terminal to draw on, which is left as it was however the command ends.


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


# ----------------------------------------------------------------------------
# `p2psgd top`: asks, draws, and ends when somebody wants it to.


PLAIN_WIDTH: Final = 120  # of what goes into a pipe or a file
REDRAW_S: Final = 1.0  # at the latest: clocks go on
FIRST_S: Final = 1.0  # until it is said that no answer has come yet
HELP: Final = "q or Ctrl+C ends"


class Watching:
    """One command: what came of one source, drawn on one console."""

    def __init__(self, source: Callable[[], NodeStatus], console: Console, *, every_s: float) -> None:
        self._asker = Asker(source, every_s=every_s)
        self._console = console
        self._every_s = every_s
        self._recent = Recent()
        self._heard = self._asker.heard

    def once(self) -> None:
        """One picture, after a second status, as rates need two. P2psgdError if the node cannot be asked."""
        with self._asker:
            while self._heard.count < 2:
                self._take(self._asker.next(self._heard, FIRST_S))
                raise_error(self._heard)
        self._print(self._draw(self._width, None))

    def lines(self) -> None:
        """A picture after every answer, one under the other, until nobody reads on."""
        with self._asker, contextlib.suppress(KeyboardInterrupt):
            told = ""
            while True:
                before = self._heard.count
                self._take(self._asker.next(self._heard, FIRST_S))
                self._check_first()
                trouble = self._trouble()
                if self._heard.count > max(before, 1):  # the first has no rates
                    if not self._print([*self._draw(self._width, None), Text()]):
                        return
                elif trouble and not told and not print_text(trouble):
                    return
                told = trouble

    def screen(self) -> None:
        """The whole terminal, until a key or Ctrl+C."""
        with self._asker, contextlib.suppress(KeyboardInterrupt):
            self._await_first()
            with Screen(self._console) as screen:
                size, drawn = (0, 0), 0.0
                while True:
                    heard = self._asker.heard
                    news, self_size = heard is not self._heard, screen.size
                    self._take(heard)
                    if news or self_size != size or time.monotonic() - drawn >= REDRAW_S:
                        size, drawn = self_size, time.monotonic()
                        screen.show(self._whole(*size))
                    if screen.wants_end():
                        return

    def _await_first(self) -> None:
        """An error at the very beginning is reported without a screen; a daemon that is silent has one."""
        self._take(self._asker.next(self._heard, FIRST_S))
        self._check_first()

    def _check_first(self) -> None:
        if not self._heard.count:
            raise_error(self._heard)

    def _take(self, heard: Heard) -> None:
        if heard.status is not None and heard.count > self._heard.count:
            self._recent.add(heard.status, heard.at)
        self._heard = heard

    def _whole(self, width: int, height: int) -> list[Text]:
        if self._heard.status is None:
            self._check_first()
            return [Text("no answer from the daemon yet"), Text(HELP, style="dim")]
        lines = self._draw(width, max(height - 1, 1))
        gap = height - 1 - len(lines)
        return [*lines, *[Text()] * gap, Text(HELP.rjust(width - 1)[-width:], style="dim")][:height]

    def _draw(self, width: int, height: int | None) -> list[Text]:
        assert self._heard.status is not None
        now = time.monotonic()
        picture = Picture(
            status=self._heard.status,
            rates=self._recent.rates(),
            losses=list(self._recent.losses),
            waits=self._recent.waiting_for(own_waits(self._heard.status), now),
            trouble=self._trouble(),
            clock=time.strftime("%H:%M:%SZ", time.gmtime()),
        )
        bars = (self._console.encoding or "").lower().startswith("utf")
        return draw(picture, width=width, height=height, bars=bars)

    @property
    def _width(self) -> int:
        return self._console.width if self._console.is_terminal else PLAIN_WIDTH

    def _trouble(self) -> str:
        return self._heard.trouble(time.monotonic(), every_s=self._every_s)

    def _print(self, lines: list[Text]) -> bool:
        """False if nobody reads on."""
        if self._console.is_terminal:
            self._console.print(Group(*lines))
            return True
        return print_text("\n".join(line.plain.rstrip() for line in lines))
