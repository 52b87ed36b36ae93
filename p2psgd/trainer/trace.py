"""What one trainer did when, as a file for chrome://tracing and Perfetto (ui.perfetto.dev).

Spans that lie within each other in time lie within each other in the picture, so nothing here knows which
belongs to which. The format is the "Trace Event Format" of Chrome: complete events (X), counters (C) and
metadata (M), times in microseconds. Events are kept in memory and written at the end; from EVENTS_MAX on they
are counted and not kept, so the file shows the begin of a long run and says what it lacks. What is measured,
and when, is step_times.py's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from p2psgd.errors import ExitCode, UsageError, words_of

EVENTS_MAX: Final = 200_000  # some 10,000 steps; 60 MB of memory and a file of about as much
LIVES_MAX: Final = 9  # of one trainer whose traces are kept; who restarts more often needs no more of them
TRAINER, DAEMON = 1, 2  # rows of the picture
_ROWS: Final = {TRAINER: "trainer", DAEMON: "its daemon"}


@dataclass
class Trace:
    """The events of one trainer so far."""

    events_max: int = EVENTS_MAX
    left_out: int = 0
    about: Callable[[], Mapping[str, float]] = dict  # figures that go with it, as of the end
    events: list[dict[str, Any]] = field(default_factory=list)

    def span(self, name: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """The trainer was at something all this time; `kind` is one word, for filters and colours."""
        times = {"ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
        self._add({"ph": "X", "tid": TRAINER, "name": name, "cat": kind, **times})

    def count(self, name: str, at_ns: int, value: float) -> None:
        """A figure of the daemon, from here until the next of this name."""
        self._add({"ph": "C", "tid": DAEMON, "name": name, "ts": at_ns / 1000, "args": {"value": value}})

    def _add(self, event: dict[str, Any]) -> None:
        if len(self.events) < self.events_max:
            self.events.append(event)
        else:
            self.left_out += 1

    def write(self, path: Path, *, node: str) -> None:
        """Write all, whole or not at all, replacing the file; UsageError if that cannot be done."""
        pid = os.getpid()
        names = [_name("process_name", TRAINER, node)]
        names += [_name("thread_name", row, word) for row, word in _ROWS.items()]
        events = [{**event, "pid": pid} for event in names + self.events]
        text = json.dumps(
            {
                "traceEvents": events,
                "displayTimeUnit": "ms",
                "otherData": {**self.about(), "events_left_out": self.left_out},
            },
            separators=(",", ":"),
            allow_nan=False,
        )
        try:
            _replace(path, text)
        except OSError as error:
            raise _refusal(path, error) from None


def choose_place(path: Path, *, later_life: bool) -> Path:
    """Where a trainer's trace goes: `path`, unless it is one that was started again and an earlier life has
    written that: then "trace.2.json" and so on, the first that is not there, or else the last.
    """
    if not later_life or not path.exists():
        return path
    places = [path.with_name(f"{path.stem}.{life}{path.suffix}") for life in range(2, LIVES_MAX + 1)]
    return next((place for place in places if not place.exists()), places[-1])


def check_place(path: Path) -> None:
    """Refuse, before anything is measured, a place where no trace can be written."""
    if path.is_dir():
        raise UsageError(f"the trace cannot be written to {path}: it is a directory; give a file name")
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise _refusal(path, error) from None


def _name(what: str, row: int, word: str) -> dict[str, Any]:
    return {"ph": "M", "tid": row, "name": what, "args": {"name": word}}


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _refusal(path: Path, error: OSError) -> UsageError:
    words = words_of(error)
    return UsageError(f"the trace cannot be written to {path}: {words}", ExitCode.USAGE)
