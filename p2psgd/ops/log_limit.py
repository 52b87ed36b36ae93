"""How often the log may say the same: a flood of one message must neither fill a disk nor hide another one.

Pure: whoever writes the lines gives the time. Messages are the same if they come from the same place in the
code and are of the same kind; 30 of them pass in a minute. Beyond that a warning or an error still passes if
it is the first of its wording, numbers aside, in that minute. The rest is counted, and told in one line when
the minute is over, with the last of them. What a trainer prints is its own and passes as it is.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any, Final

WINDOW_S: Final = 60.0
PER_WINDOW: Final = 30  # of one place: half a line a second, 4 MB a day
WORDINGS_MAX: Final = 64  # told apart in one place and minute: parts of them may have been written by peers
WORDING_MAX: Final = 200  # characters that tell them apart
PLACES_MAX: Final = 512  # there are some fifty in the code; a library's are many
_NUMBERS: Final = re.compile(r"[0-9a-f]{16}|\d+")


@dataclass(slots=True)
class _Place:
    """What came from one place since `began`, seconds, monotonic."""

    began: float
    passed: int = 0
    wordings: set[str] = field(default_factory=set)
    held: int = 0  # not told yet
    last: logging.LogRecord | None = None  # of these


class LogLimit:
    """Of one log. Not safe for several threads at once: the handler that asks holds its lock."""

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], _Place] = {}
        self._due = float("inf")  # the first minute ends then

    def take(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """What is to be written now that `record` has come: what was held back before, and the record itself
        unless it is held back.
        """
        due = self.settle(now)
        if getattr(record, "unlimited", False):
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
        """What was held back in minutes that are over, in words; to be asked now and then."""
        if now < self._due:
            return []
        over = [key for key, place in self._places.items() if now - place.began >= WINDOW_S]
        told = [record for key in over for record in self._end(key)]
        self._due = min((place.began + WINDOW_S for place in self._places.values()), default=float("inf"))
        return told

    def close(self) -> list[logging.LogRecord]:
        """What was held back and not told yet, in words: the log ends."""
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
