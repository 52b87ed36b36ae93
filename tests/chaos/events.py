"""What the nodes' own event logs tell: how long each life took to READY, what happened, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from p2psgd.base.errors import UsageError
from p2psgd.storage.event_log import EventReader

COUNTED: Final = frozenset(
    {
        *("view", "admitted", "evicted", "left", "snapshot given", "snapshot taken", "quarantine", "mended"),
        *("checkpoint", "restored", "abandoned", "ready", "unready", "alarm"),
    }
)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of an event log, `at` on the wall clock in seconds."""

    at: float
    kind: str
    words: str


def read(state: Path) -> list[Event]:
    """All that a node's log has kept; none if it never had one. What a full disk did not take is missing."""
    try:
        with EventReader(state) as reader:
            return [_event(fields) for fields in reader.kept()]
    except UsageError:
        return []


def counts(events: Iterable[Event]) -> dict[str, int]:
    """How often each kind that is worth counting happened, by kind."""
    found = Counter(event.kind for event in events if event.kind in COUNTED)
    return dict(sorted(found.items()))


def within(events: Sequence[Event], began: float, ended: float) -> list[Event]:
    """Those of one life."""
    return [event for event in events if began <= event.at <= ended]


def ready_after(events: Sequence[Event], began: float, ended: float) -> float | None:
    """Seconds from a life's start to its first READY; None if it never was."""
    return next((event.at - began for event in within(events, began, ended) if event.kind == "ready"), None)


def _event(fields: Mapping[str, Any]) -> Event:
    return Event(datetime.fromisoformat(fields["time"]).timestamp(), fields["kind"], fields["words"])
