"""Whether the own trainer is held up, why, and since when; its beginning and its end are events."""

from __future__ import annotations

from p2psgd.ops import numerals
from p2psgd.ops.event_log import EventLog
from p2psgd.ops.replication import StallFigures


class Stall:
    """Told again and again why the trainer is held up; the reason may change while it lasts."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._words = ""
        self._since = 0.0

    def update(self, words: str, now: float) -> None:
        """`words`: why it is held up at `now` (seconds, monotonic), empty if it is not."""
        if words and not self._words:
            self._since = now
            self._events.write("stall", f"the trainer is held up: {words}")
        elif self._words and not words:
            lasted_s = now - self._since
            sentence = f"the trainer goes on after {numerals.duration(lasted_s)}"
            self._events.write("stall", sentence, seconds=round(lasted_s, 3))
        self._words = words

    def figures(self, now: float) -> StallFigures | None:
        """For the status; None while the trainer is not held up."""
        return StallFigures(self._words, now - self._since) if self._words else None
