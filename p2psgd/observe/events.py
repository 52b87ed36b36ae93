"""Read a node's event log, for `p2psgd events`: of a node that runs, and of one that has ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from p2psgd.errors import ExitCode, UsageError, words_of
from p2psgd.observe.figures import printable
from p2psgd.storage.event_log import EVENTS_NAME, KINDS, older_path, parse_event

POLL_S: Final = 0.2
LINE_BYTES_MAX: Final = 64 * 1024  # a longer line is no event of ours
KIND_WIDTH: Final = 14

Event = dict[str, Any]


class EventReader:
    """The events in the state directory `state`; UsageError if there are none or they cannot be read."""

    def __init__(self, state: Path) -> None:
        self._path = state / EVENTS_NAME
        self._newest = self._open()
        self._rest = b""  # of a line that has only begun

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._newest.close()

    def kept(self) -> list[Event]:
        """All that are kept now, oldest first; to be called once, before `follow`."""
        older = b""
        # The newest was opened before the older one is: else a file that fills up now could be missed.
        with contextlib.suppress(OSError), older_path(self._path).open("rb") as file:
            if not os.path.sameopenfile(file.fileno(), self._newest.fileno()):
                older = file.read()
        return [*_parse(older.split(b"\n")), *self._read()]

    def follow(self) -> Iterator[Event]:
        """Those that come after, for ever."""
        while True:
            replaced = self._is_replaced()  # looked at first: nothing is added to a file after that
            yield from self._read()
            if replaced:
                self._newest.close()
                self._newest, self._rest = self._open(), b""
            else:
                time.sleep(POLL_S)

    def _read(self) -> Iterator[Event]:
        *lines, rest = (self._rest + self._newest.read()).split(b"\n")
        self._rest = rest if len(rest) <= LINE_BYTES_MAX else b""
        return _parse(lines)

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            raise UsageError(
                f"no events in {self._path.parent}: name that of a node that has run with --state"
            ) from None
        except OSError as error:
            reason = words_of(error)
            raise UsageError(f"cannot read {self._path}: {reason}", ExitCode.PERMISSION) from None

    def _is_replaced(self) -> bool:
        """It was full, and the daemon has begun another."""
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._newest.fileno()))
        except OSError:
            return False


def select_events(events: list[Event], *, kind: str | None, last: int | None) -> list[Event]:
    """The last so many of one kind; None: of any kind, all. UsageError if there is no such kind."""
    kinds = KINDS | {event["kind"] for event in events}  # those of a later version as well
    if kind is not None and kind not in kinds:
        raise UsageError(
            f"no event is of kind {kind!r:.40}; there are: {', '.join(map(printable, sorted(kinds)))}"
        )
    chosen = [event for event in events if kind in (None, event["kind"])]
    return chosen if last is None else chosen[-last:]


def render_event(event: Event) -> str:
    """One line for people: time, kind, whom it is about, the sentence."""
    who = f"{printable(event['node'])}: " if event.get("node", "") not in event["words"] else ""
    when = printable(event["time"])[:19].replace("T", " ")
    return f"{when}Z  {printable(event['kind']):<{KIND_WIDTH}}  {who}{printable(event['words'])}"


def _parse(lines: list[bytes]) -> Iterator[Event]:
    return filter(None, map(parse_event, lines))
