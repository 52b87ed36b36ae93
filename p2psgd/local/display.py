"""How a local run shows itself: a table that is redrawn on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from p2psgd.ops import numerals
from p2psgd.ops.figures import Status
from p2psgd.ops.live_table import live_table
from p2psgd.ops.progress_line import progress_line

LINE_EVERY_S = 5.0


class Display:
    """Context that shows a run's statuses on `console`; the last table stays on the terminal."""

    def __init__(self, console: Console, heading: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._heading = heading
        self._clock = clock
        self._began = clock()
        self._next_line = self._began + LINE_EVERY_S
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            # No refresh thread: this process forks, and redraws by itself whenever there is something new.
            self._live = Live(
                console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        else:
            self.say(self._heading)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, phase: str, statuses: Sequence[Status], *, at_once: bool = False) -> None:
        """Show these statuses; where lines are printed, only every few seconds or `at_once`."""
        now = self._clock()
        elapsed = numerals.duration(now - self._began)
        if self._live is not None:
            title = f"{self._heading}, {elapsed}: {phase}"
            self._live.update(live_table(statuses, title=title, width=self._console.width), refresh=True)
        elif at_once or now >= self._next_line:
            self._next_line = now + LINE_EVERY_S
            self.say(f"{elapsed}, {phase}: {progress_line(statuses)}")

    def say(self, sentence: str) -> None:
        """Print a sentence, above the table if there is one."""
        self._console.print(Text(sentence), soft_wrap=True)
