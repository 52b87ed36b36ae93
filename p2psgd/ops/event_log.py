"""A node's event log: what happened to it, one JSON object a line, in its state directory.

Kept to 1 MiB and the 1 MiB before it, so it can neither fill a disk nor be lost by a restart. What peers
cause at will has a limit of its own, see ops/event_limit.py. A log that cannot be written is counted and told
in the status, and nothing else changes: training goes on. Figures that change all the time belong into the
status; here stand the moments when something became different.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from p2psgd.errors import words_of
from p2psgd.ops.event_limit import EventLimit

EVENTS_NAME: Final = "events.jsonl"
EVENTS_BYTES_MAX: Final = 1024 * 1024  # of one file; there are two, this one and the one before
EVENTS_KEPT: Final = 200  # the latest, in memory
WORDS_MAX: Final = 1000  # characters
KINDS: Final = frozenset(
    {"start", "stop", "cut short", "trainer", "stall", "alarm", "checkpoint", "restored"}
    | {"link", "view", "admitted", "left", "evicted", "removed", "ready", "unready"}
    | {"snapshot given", "snapshot taken", "quarantine", "mended", "lost", "abandoned"}
    | {"result given", "given up", "refused", "certificate", "reload", "zeroconf"}
)

Figure = int | float | str | bool


class EventLog:
    """Appends to `events.jsonl` in the state directory `state`; when full it becomes `events.jsonl.1`.

    `failures` counts the events that are in memory only, `trouble` says why the last of them is. Every event
    has `time` (UTC, ISO 8601), `count` (ascending, also over restarts), `kind`, `words`, then `node` and `id`
    if it is about a peer, then its figures. `cut_short`: the last one of the life before was no "stop".
    """

    def __init__(
        self, state: Path, *, bytes_max: int = EVENTS_BYTES_MAX, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = state / EVENTS_NAME
        self.latest: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.failures = 0
        self.trouble = ""
        self.names: Callable[[int], str | None] = lambda _: None  # what people call a node
        self._bytes_max = bytes_max
        self._limit = EventLimit()
        self._now = now
        last = _last_event(self.path)
        self._count = 0 if last is None else int(last["count"])
        self.cut_short = last is not None and last["kind"] != "stop"
        self._file: int | None = None
        self._size = 0
        self._torn = False

    def write(self, kind: str, words: str, node: int | None = None, **figures: Figure) -> None:
        """Keep one event: `kind` for machines, `words` for people, `node` the id of the peer it is about, or
        that has caused it. What peers cause too often is counted instead.
        """
        held_back = self._limit.pass_on(kind, node, self._now())
        if held_back is None:
            return
        words = words[:WORDS_MAX]
        if held_back:
            words += f" (before it {held_back:,} more of this kind were counted and not kept)"
            figures["held_back"] = held_back
        self._count += 1
        event: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "count": self._count,
            "kind": kind,
            "words": words,
        }
        event |= self.about(node) | figures
        self.latest.append(event)
        try:
            self._append(json.dumps(event).encode() + b"\n")
        except OSError as error:
            self._fail(error)

    def about(self, node: int | None) -> dict[str, str]:
        """The peer that something is about; nothing if it is about none."""
        if node is None:
            return {}
        return {"node": self.names(node) or f"{node:016x}", "id": f"{node:016x}"}

    def status(self) -> dict[str, Any]:
        """The status in short: how many events there were, whether all of them are in the file, and how many
        more peers have caused.
        """
        return {
            "count": self._count,
            "held_back": self._limit.held_back,
            "failures": self.failures,
            "trouble": self.trouble,
        }

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o640)
            self._size = os.fstat(self._file).st_size
            self._torn = self._size > 0 and not _ends_whole(self.path)
        if self._torn:  # what was cut off in the middle stays a line of its own, which readers skip
            line = b"\n" + line
        if self._size > 0 and self._size + len(line) > self._bytes_max:
            self.close()
            self.path.rename(older_path(self.path))
            self._append(line.lstrip(b"\n"))
            return
        written = os.write(self._file, line)
        self._size += written
        self._torn = written < len(line)
        if self._torn:
            raise OSError(0, "the disk is full")

    def _fail(self, error: OSError) -> None:
        self.failures += 1
        self.trouble = f"{self.path} cannot be written: {words_of(error)}"
        with contextlib.suppress(OSError):
            self.close()
        self._file = None


def older_path(path: Path) -> Path:
    """Where the full file went."""
    return path.with_name(path.name + ".1")


def parse_event(line: bytes) -> dict[str, Any] | None:
    """The event in a line of the file, None if it is none."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    keys = {"time": str, "count": int, "kind": str, "words": str}
    whole = isinstance(event, dict) and all(isinstance(event.get(key), keys[key]) for key in keys)
    return event if whole else None


def _last_event(path: Path) -> dict[str, Any] | None:
    for candidate in (path, older_path(path)):
        with contextlib.suppress(OSError):
            for line in reversed(candidate.read_bytes().splitlines()):
                event = parse_event(line)
                if event is not None:
                    return event
    return None


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
