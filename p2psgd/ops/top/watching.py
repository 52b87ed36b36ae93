"""`p2psgd top`: asks, draws, and ends when somebody wants it to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console, Group
from rich.text import Text

from p2psgd.ops.figures import Status
from p2psgd.ops.printing import print_text
from p2psgd.ops.top.asking import Asker, Heard, raise_error
from p2psgd.ops.top.frame import Picture, draw
from p2psgd.ops.top.nodes import own_waits
from p2psgd.ops.top.recent import Recent
from p2psgd.ops.top.screen import Screen

PLAIN_WIDTH: Final = 120  # of what goes into a pipe or a file
REDRAW_S: Final = 1.0  # at the latest: clocks go on
FIRST_S: Final = 1.0  # until it is said that no answer has come yet
HELP: Final = "q or Ctrl+C ends"


class Watching:
    """One command: what came of one source, drawn on one console."""

    def __init__(self, source: Callable[[], Status], console: Console, *, every_s: float) -> None:
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
        """An error at the very beginning is told without a screen; a daemon that is silent has one."""
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
