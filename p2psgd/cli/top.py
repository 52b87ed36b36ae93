"""`p2psgd top`: one node's status on a whole terminal, asked again and again.

The lines are those of `p2psgd status`, without those that stay as they are. What takes several statuses is
made here: rates, and the losses over time. A thread asks, so that the screen never waits for an answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from p2psgd.base.errors import ExitCode, P2psgdError, UsageError
from p2psgd.base.formatting import UNKNOWN, decimals, duration, print_text, printable, size
from p2psgd.ipc.client import ControlClient
from p2psgd.observe.status import NodeStatus, read_status
from p2psgd.observe.text import LABEL_WIDTH, Grade, Line, Rates, status_lines

# ----------------------------------------------------------------------------
# Asking a node for its status, over its control socket or over HTTP.


HTTP_TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
_URL: Final = re.compile(r"(http://(?:\[[\w:.%-]+\]|[\w.-]+)(?::\d{1,5})?)(?:/[^?#]*)?", re.ASCII)


def ask_over_control(path: Path) -> NodeStatus:
    """Return the status from a control socket. Raises P2psgdError."""
    with ControlClient(path) as client:
        return read_status(client.request("status")["status"])


class HttpSource:
    """Asks where `--http` shows a node; UsageError for a bad address. Raises P2psgdError."""

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


# ----------------------------------------------------------------------------
# What became of one node's figures of late. Starts anew when another daemon answers, whose counters do too.


WINDOW_S: Final = 5.0  # rates are means over so long
SAMPLES_MAX: Final = 64
LOSSES_MAX: Final = 600
SILENT_S: Final = 3.0  # beyond the usual pause; a shorter silence is no news


class History:
    """The history holds what one node has answered, bounded. `now` is in seconds, monotonic."""

    def __init__(self, *, every_s: float) -> None:
        self.status: NodeStatus | None = None  # the last one
        self.count = 0
        self.error: Exception | None = None  # since then
        self.losses: deque[float] = deque(maxlen=LOSSES_MAX)
        self._samples: deque[tuple[float, NodeStatus]] = deque(maxlen=SAMPLES_MAX)
        self._silent_s = every_s + SILENT_S
        self._failed_at = 0.0

    def add(self, answer: NodeStatus | Exception, now: float) -> None:
        """Add what has come of a question."""
        if isinstance(answer, Exception):
            self._failed_at = self._failed_at if self.error else now
            self.error = answer
            return
        if self.status is not None and _daemon(self.status) != _daemon(answer):
            self._samples.clear()
            self.losses.clear()
        self.status, self.error, self.count = answer, None, self.count + 1
        self._samples.append((now, answer))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        if answer.trainer.loss is not None:
            self.losses.append(answer.trainer.loss)

    def rates(self) -> Rates:
        """Return means over the last seconds; none before the second status."""
        if len(self._samples) < 2:
            return {}
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        before, after, span_s = _counts(first), _counts(last), max(ended - began, 1e-3)
        return {key: (count - before[key]) / span_s for key, count in after.items() if key in before}

    def trouble(self, now: float) -> str:
        """Return why the status is an old one, or not there, in a sentence; empty if it is of now."""
        if self.error is not None and not self.count:
            return str(self.error)
        if self.error is not None:
            lasts_s = now - self._failed_at
            since = time.strftime("%H:%M:%SZ", time.gmtime(time.time() - lasts_s))
            return f"the daemon is gone since {since} ({duration(lasts_s)}), trying again"
        if self._samples and (silent_s := now - self._samples[-1][0]) > self._silent_s:
            return f"the daemon has not answered for {duration(silent_s)}"
        return ""


def _daemon(status: NodeStatus) -> tuple[str, int, int]:
    return status.id, status.incarnation, status.pid


def _counts(status: NodeStatus) -> dict[str, int]:
    """Return what grows while a node runs, by the names of `Rates`."""
    counts = {"steps": status.trainer.steps}
    counts |= {} if status.bytes is None else {"sent": status.bytes.sent, "received": status.bytes.received}
    for peer in status.peers:
        counts |= {f"sent {peer.key}": peer.bytes_sent, f"received {peer.key}": peer.bytes_received}
    for row in status.frontier:  # a node may have a row for each of its lives
        counts[f"updates {row.id}"] = counts.get(f"updates {row.id}", 0) + row.sequence
    return counts


# ----------------------------------------------------------------------------
# One picture: a bar that says how it stands, the rates, the lines of the status, a line for each peer.


STILL: Final = frozenset(
    {"state", "fingerprint", "listens", "tls", "shown at", "looked at", "replica", "checkpoint", "scrub"}
)
STYLES: Final = {Grade.WARN: "yellow", Grade.BAD: "red", Grade.IDLE: "dim"}
BARS: Final = "▁▂▃▄▅▆▇█"
BARS_MAX: Final = 48


def draw(
    status: NodeStatus,
    *,
    rates: Rates,
    losses: Sequence[float] = (),
    trouble: str = "",
    clock: str = "",
    bars: bool = True,
) -> RenderableType:
    """Return what there is to draw.

    Args:
        trouble: Why the status is an old one; empty: it is not.
        clock: The time now.
        bars: Whether the terminal has characters for them.
    """
    lines = [line for line in status_lines(status, rates) if line.label not in STILL or line.grade]
    facts = Table.grid(padding=(0, 1))
    facts.add_column(width=LABEL_WIDTH - 1, no_wrap=True, style="dim")
    facts.add_column(overflow="fold")
    for label, words, grade in (Line("rates", _rates(rates)), Line("loss", _loss(losses, bars=bars)), *lines):
        if words:
            facts.add_row(label, Text(words, style=STYLES.get(grade, "")))
    late = any(line.grade in (Grade.WARN, Grade.BAD) for line in lines)
    return Group(_heading(status, trouble, clock, late=late), facts)


def draw_node(histories: Sequence[History], clock: str, *, bars: bool) -> RenderableType:
    """Return what there is to draw of the one node that was asked."""
    (history,) = histories
    if history.status is None:
        return Text("no answer from the daemon yet; q or Ctrl+C ends")
    return draw(
        history.status,
        rates=history.rates(),
        losses=list(history.losses),
        trouble=history.trouble(time.monotonic()),
        clock=clock,
        bars=bars,
    )


def _heading(status: NodeStatus, trouble: str, clock: str, *, late: bool) -> Table:
    ready = "" if status.ready is None else ", ready" if status.ready else ", not ready"
    words = trouble or f"{status.state}{ready}{', plaintext' if status.plaintext else ''}"
    right = "" if trouble else f"up {duration(status.uptime_s)}  {clock}"
    bar = Table.grid(expand=True, padding=(0, 1), pad_edge=True)
    bar.add_column(ratio=1, no_wrap=True)
    bar.add_column(no_wrap=True, justify="right")
    style = "bold white on red" if trouble else f"bold black on {'yellow' if late else 'green'}"
    bar.add_row(Text(printable(f"{status.node}: {words}")), right, style=style)
    return bar


def _rates(rates: Rates) -> str:
    sent, received = (f"{size(rates[way])}/s" if way in rates else UNKNOWN for way in ("sent", "received"))
    steps = f"{decimals(rates.get('steps'), 1)} steps/s"
    return f"{steps}, out {sent}, in {received}"


def _loss(losses: Sequence[float], *, bars: bool) -> str:
    """Return the losses that were seen as a curve; of means if there are more than bars."""
    width = min(len(losses), BARS_MAX)
    if width < 2 or not bars:
        return ""
    edges = [len(losses) * place // width for place in range(width + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    curve = "".join(BARS[min(int((mean - low) / span * len(BARS)), len(BARS) - 1)] for mean in means)
    return f"{curve}  {losses[0]:.3g} to {losses[-1]:.3g}"


# ----------------------------------------------------------------------------
# `p2psgd top`: asks, draws, and ends when somebody wants it to.


QUIT: Final = frozenset(b"qQ\x03\x04")  # Ctrl+C and Ctrl+D where they come as keys
PLAIN_WIDTH: Final = 120  # of what goes into a pipe or a file
KEY_S: Final = 0.2  # to wait for a key
REDRAW_S: Final = 1.0  # at the latest: clocks go on
FIRST_S: Final = 1.0  # until it is said that no answer has come yet
ANSWERS_MAX: Final = 4  # that nobody has looked at yet; then the thread waits


Draw = Callable[[Sequence[History], str], RenderableType]  # what the sources have answered, and the time


class Watching:
    """A command asks some sources and draws on one console. P2psgdError if none of them can be asked."""

    def __init__(
        self,
        sources: Sequence[Callable[[], NodeStatus]],
        console: Console,
        *,
        every_s: float,
        draw: Draw,
    ) -> None:
        self._answers: queue.Queue[tuple[int, NodeStatus | Exception, float]]
        self._answers = queue.Queue(ANSWERS_MAX * len(sources))
        self._console = console
        self._draw = draw
        self._histories = [History(every_s=every_s) for _ in sources]
        for place, source in enumerate(sources):
            asking = (place, source, every_s)
            threading.Thread(target=self._ask_on, args=asking, name="asking", daemon=True).start()

    def once(self) -> None:
        """Print one picture, after a second status, as rates need two."""
        while any(each.count < 2 and each.error is None for each in self._histories):
            self._next(None)
        if len(self._histories) == 1:
            _raise(self._histories[0].error)
        self._print()

    def lines(self) -> None:
        """Print a picture after every answer, one under the other, until nobody reads on."""
        first, alone = self._histories[0], len(self._histories) == 1
        with contextlib.suppress(KeyboardInterrupt):
            going_on, told = True, False
            while going_on:
                news = self._next(FIRST_S)
                if trouble := first.trouble(time.monotonic()) if alone else "":
                    going_on = told or print_text(trouble)
                elif news and max(each.count for each in self._histories) > 1:  # the first has no rates
                    going_on = self._print()
                told = bool(trouble)

    def screen(self) -> None:
        """Draw on the whole terminal until a key or Ctrl+C; print an error at the beginning without it."""
        with contextlib.suppress(KeyboardInterrupt):
            self._next(FIRST_S)
            with _whole_terminal(self._console) as (live, keys):
                drawn, before = 0.0, self._console.size
                while not _ends(keys):
                    if self._next(0) or self._console.size != before or time.monotonic() - drawn >= REDRAW_S:
                        drawn, before = time.monotonic(), self._console.size
                        live.update(fit(self._picture(hint="  q ends"), self._console), refresh=True)

    def _ask_on(self, place: int, source: Callable[[], NodeStatus], every_s: float) -> None:
        while True:
            answer: NodeStatus | Exception
            try:
                answer = source()
            except (P2psgdError, OSError) as error:
                answer = error
            self._answers.put((place, answer, time.monotonic()))
            time.sleep(every_s)

    def _next(self, timeout_s: float | None) -> bool:
        """Wait for an answer, and take all that are there; return whether one is of the first source. If no
        source has ever answered, and all have failed, the first one's error is raised.
        """
        places: set[int] = set()
        with contextlib.suppress(queue.Empty):
            while True:
                place, answer, at = self._answers.get(not places and timeout_s != 0, timeout_s)
                self._histories[place].add(answer, at)
                places.add(place)
        if all(each.error and not each.count for each in self._histories):
            _raise(self._histories[0].error)
        return 0 in places

    def _picture(self, *, hint: str = "") -> RenderableType:
        return self._draw(self._histories, time.strftime("%H:%M:%SZ", time.gmtime()) + hint)

    def _print(self) -> bool:
        """Print a picture as plain text, and an empty line; False if nobody reads on."""
        width = self._console.width if self._console.is_terminal else PLAIN_WIDTH
        plain = Console(width=width, color_system=None, force_terminal=False)
        with plain.capture() as capture:
            plain.print(self._picture())
        return print_text("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def fit(picture: RenderableType, console: Console) -> RenderableType:
    """Return a picture that fits the terminal: its last line says how many lines are left out."""
    lines = console.render_lines(picture, pad=False)
    left_out = len(lines) - console.height + 1
    if left_out < 2:
        return picture
    words = f"... {left_out} more lines: p2psgd status"
    return Group(SegmentLines(lines[: console.height - 1], new_lines=True), Text(words, no_wrap=True))


def _raise(error: Exception | None) -> None:
    match error:
        case None:
            return
        case P2psgdError():
            raise error
        case _:
            raise UsageError(f"the node cannot be asked: {error}", ExitCode.TEMPORARY)


@contextlib.contextmanager
def _whole_terminal(console: Console) -> Iterator[tuple[Live, int | None]]:
    """Draw on all of it, and leave it as it was however the command ends."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if keys is None else termios.tcgetattr(keys)
    live = Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    try:
        if keys is not None:
            tty.setcbreak(keys)
            mode = termios.tcgetattr(keys)
            mode[6][termios.VSUSP] = b"\0"  # Ctrl+Z would leave the drawing on the terminal
            termios.tcsetattr(keys, termios.TCSADRAIN, mode)
        live.start()
        yield live, keys
    finally:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            if keys is not None and before is not None:
                termios.tcsetattr(keys, termios.TCSADRAIN, before)
        with contextlib.suppress(OSError):
            live.stop()


def _ends(keys: int | None) -> bool:
    """Wait a moment for a key; whether it is one that ends the command."""
    if not select.select([] if keys is None else [keys], [], [], KEY_S)[0] or keys is None:
        return False
    pressed = os.read(keys, 64)
    return not pressed or bool(QUIT & set(pressed))


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
