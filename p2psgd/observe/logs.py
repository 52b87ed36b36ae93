"""A daemon's log on standard error, and the limit on repeated messages."""

from __future__ import annotations

import enum
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from p2psgd.base.formatting import printable

# ----------------------------------------------------------------------------
# How often the log may repeat a message: a flood of one message must neither fill a disk nor hide another
# one.
#
# Pure: the writer of the lines gives the time. Messages are the same if they come from the same place in the
# code and are of the same kind; 30 of them pass in a minute. Beyond that a warning or an error still passes
# if it is the first of its wording, numbers aside, in that minute. The rest is counted, and reported in one
# line when the minute is over, with the last of them. What a trainer prints (`output`) has a limit of its
# own, in node/trainer_output.py, and passes as it is.


WINDOW_S: Final = 60.0
PER_WINDOW: Final = 30  # of one place: half a line a second, 4 MB a day
WORDINGS_MAX: Final = 64  # told apart in one place and minute: parts of them may have been written by peers
WORDING_MAX: Final = 200  # characters that tell them apart
PLACES_MAX: Final = 512  # there are some fifty in the code; a library's are many
_NUMBERS: Final = re.compile(r"[0-9a-f]{16}|\d+")


@dataclass(slots=True)
class _Place:
    """The count of messages that have come from one place since `began`, seconds, monotonic."""

    began: float
    passed: int = 0
    wordings: set[str] = field(default_factory=set)
    held: int = 0  # not told yet
    last: logging.LogRecord | None = None  # of these


class LogLimit:
    """The limit of one log. It is not thread-safe: the handler that asks holds its lock."""

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], _Place] = {}
        self._due = float("inf")  # the first minute ends then

    def take(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """Return what to write now that `record` has come: what was held back before, and the record itself
        unless it is held back.
        """
        due = self.settle(now)
        if getattr(record, "output", False):
            return [*due, record]
        kind = getattr(record, "fields", {}).get("kind")
        key = (record.pathname, record.lineno, record.levelno, kind)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= PLACES_MAX:
                due += self._end(next(iter(self._places)))
            place = self._places[key] = _Place(now)
            self._due = min(self._due, now + WINDOW_S)
        if self._passes(place, record):
            place.passed += 1
            return [*due, record]
        place.held, place.last = place.held + 1, record
        return due

    def settle(self, now: float) -> list[logging.LogRecord]:
        """Return what was held back in minutes that are over, in words; ask this now and then."""
        if now < self._due:
            return []
        over = [key for key, place in self._places.items() if now - place.began >= WINDOW_S]
        told = [record for key in over for record in self._end(key)]
        self._due = min((place.began + WINDOW_S for place in self._places.values()), default=float("inf"))
        return told

    def close(self) -> list[logging.LogRecord]:
        """Return what was held back and not yet reported, in words: the log ends."""
        return [record for key in list(self._places) for record in self._end(key)]

    def _passes(self, place: _Place, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return place.passed < PER_WINDOW
        wording = _NUMBERS.sub("0", record.getMessage()[:WORDING_MAX])
        fresh = wording not in place.wordings and len(place.wordings) < WORDINGS_MAX
        if fresh:
            place.wordings.add(wording)
        return fresh or place.passed < PER_WINDOW

    def _end(self, key: tuple[Any, ...]) -> list[logging.LogRecord]:
        place = self._places.pop(key)
        if place.last is None:
            return []
        words = f"{place.held:,} more like this in the last minute, the last of them: "
        told = {
            **place.last.__dict__,
            "msg": "%s%s",
            "args": (words, place.last.getMessage()),
            "exc_info": None,
            "exc_text": None,
            "fields": {**getattr(place.last, "fields", {}), "repeated": place.held},
        }
        return [logging.makeLogRecord(told)]


# ----------------------------------------------------------------------------
# A daemon's log on standard error: lines for people, or JSON lines if they are asked for.
#
# In the journal each line begins with its priority, `<4>` for a warning as sd-daemon(3) has it, and has no
# time, which the journal adds. Control characters and newlines in a message come out escaped: parts of it
# may have been written by peers. How often the same is said is limited: see LogLimit. A line that the trainer
# has printed is marked as such, `| `.


PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
DEBUG_PRIORITY: Final = 7
OUTPUT_MARK: Final = "| "
_OUTPUT_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \| (.*)")

log = logging.getLogger("p2psgd")


class LogFormat(enum.StrEnum):
    """The values of --log-format."""

    TEXT = "text"
    JSON = "json"


class TextFormatter(logging.Formatter):
    """A formatter of lines `2026-11-22 12:03:04Z WARNING words`, no level if it is INFO, `| words` for what
    the trainer has printed; a traceback on lines of its own.
    """

    def __init__(self, *, timed: bool = True) -> None:
        super().__init__()
        self._timed = timed

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%SZ ")
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        if getattr(record, "output", False):
            level = OUTPUT_MARK
        words = f"{when if self._timed else ''}{level}{printable(record.getMessage())}"
        return "\n".join([words, *map(printable, _trace_of(record).splitlines())])


def output_of(line: str) -> str | None:
    """Return what the trainer has printed, from a line of a log as text; None for any other line."""
    found = _OUTPUT_LINE.fullmatch(line)
    return found and found[1]


class JsonFormatter(logging.Formatter):
    """A formatter of one object a line: `time` (UTC, ISO 8601), `level`, `logger`, `message`, of an event
    also `kind` and, if it is about a peer, `node` and `id`; `traceback` of a bug.
    """

    def format(self, record: logging.LogRecord) -> str:
        trace = _trace_of(record)
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
            **({"traceback": trace} if trace else {}),
        }
        return json.dumps(fields, default=str)


class JournalFormatter(logging.Formatter):
    """A formatter that puts the priority before each line that another formatter makes."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next((each for level, each in PRIORITIES if record.levelno >= level), DEBUG_PRIORITY)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).splitlines())


class LogHandler(logging.StreamHandler[TextIO]):
    """A handler that writes the log, as often as its limit lets it."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._limit = LogLimit()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            records = self._limit.take(record, time.monotonic())
        except Exception:  # a message whose arguments do not fit it: no reason to end who has logged it
            self.handleError(record)
        else:
            self._write(records)

    def settle(self, *, whole: bool = False) -> None:
        """Report what was held back, if it is time for it; or the `whole` of it, before the log ends."""
        assert self.lock is not None
        with self.lock:
            self._write(self._limit.close() if whole else self._limit.settle(time.monotonic()))

    def close(self) -> None:
        self.settle(whole=True)
        super().close()

    def _write(self, records: Iterable[logging.LogRecord]) -> None:
        for record in records:
            super().emit(record)


def begin_log(form: LogFormat, *, stream: TextIO | None = None) -> None:
    """Begin to log to `stream`, by default standard error."""
    stream = stream or sys.stderr
    logging.basicConfig(level=logging.INFO, handlers=[LogHandler(stream, choose_formatter(form, stream))])
    logging.captureWarnings(True)


def choose_formatter(
    form: LogFormat, stream: TextIO, environment: Mapping[str, str] = os.environ
) -> logging.Formatter:
    """Return the formatter that `form` means for this stream."""
    journal = leads_to_journal(stream, environment)
    formatter = TextFormatter(timed=not journal) if form is LogFormat.TEXT else JsonFormatter()
    return JournalFormatter(formatter) if journal else formatter


def leads_to_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream goes straight to the journal: $JOURNAL_STREAM of systemd.exec(5) names
    it, and is there too in a child whose output was put elsewhere.
    """
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        there = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(there.st_dev), str(there.st_ino))


def settle_log(*, whole: bool = False) -> None:
    """Report what was held back for being repeated too often, now and then; `whole`: before the last line."""
    handler = _handler()
    if handler is not None:
        handler.settle(whole=whole)


def say_last(words: str) -> None:
    """Report the sentence that a command ends with: in its log, if that is for machines or in the journal.

    A command that has no log yet writes text, with the priority of an error if the journal gets it.
    """
    handler = _handler()
    settle_log(whole=True)
    if handler is None or isinstance(handler.formatter, TextFormatter):
        priority = "<3>" if leads_to_journal(sys.stderr) else ""
        sys.stderr.write(f"{priority}p2psgd: {printable(words)}\n")
    else:
        log.error("%s", words)


def say_bug() -> None:
    """Report the exception that is being handled as one that no code expected."""
    if _handler() is None:
        traceback.print_exc()
    else:
        log.critical("ended by a bug, please report it", exc_info=True)


def _handler() -> LogHandler | None:
    return next((each for each in logging.getLogger().handlers if isinstance(each, LogHandler)), None)


def _trace_of(record: logging.LogRecord) -> str:
    return "" if not record.exc_info else logging.Formatter().formatException(record.exc_info)
