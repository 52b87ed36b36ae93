"""Train like `p2psgd train`, and write what the trainer did when to a file for Perfetto (ui.perfetto.dev).

    p2psgd local -n 4 --trainer "python -m benchmarks.trace trace.json --recipe digits"
    p2psgd node --peers hosts.txt --trainer "python -m benchmarks.trace trace.json --mode ring"

Each trainer writes a file of its own: trace.json, or trace.2.json and so on if that is there already.
Spans that lie within each other in time lie within each other in the picture, so nothing here knows which
belongs to which. The format is the "Trace Event Format" of Chrome: complete events (X), counters (C) and
metadata (M), times in microseconds. Events are kept in memory and written at the end. After EVENTS_MAX they
are only counted, and the file says how many are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from p2psgd.base.errors import UsageError
from p2psgd.gpu import find_backend
from p2psgd.recipes.main import train
from p2psgd.recipes.recipe import Told, load_recipe

EVENTS_MAX: Final = 200_000  # some 10,000 steps; 60 MB of memory and a file of about as much
FILES_MAX: Final = 64  # as many as `p2psgd local` has trainers
TRAINER, DAEMON = 1, 2  # rows of the picture
_ROWS: Final = {TRAINER: "trainer", DAEMON: "its daemon"}


@dataclass
class TraceEvents:
    """The events of one trainer so far: a p2psgd.recipes.telemetry.Trace."""

    events_max: int = EVENTS_MAX
    left_out: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def span(self, name: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """Keep a piece of the trainer's time."""
        times = {"ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
        self._add({"ph": "X", "tid": TRAINER, "name": name, "cat": kind, **times})

    def count(self, name: str, at_ns: int, value: float) -> None:
        """Keep a figure of the daemon."""
        self._add({"ph": "C", "tid": DAEMON, "name": name, "ts": at_ns / 1000, "args": {"value": value}})

    def _add(self, event: dict[str, Any]) -> None:
        if len(self.events) < self.events_max:
            self.events.append(event)
        else:
            self.left_out += 1

    def write(self, file: TextIO) -> None:
        """Write all events as one JSON object."""
        pid = os.getpid()
        names = [_name("process_name", TRAINER, f"process {pid}")]
        names += [_name("thread_name", row, word) for row, word in _ROWS.items()]
        document = {
            "traceEvents": [{**event, "pid": pid} for event in names + self.events],
            "displayTimeUnit": "ms",
            "otherData": {"events_left_out": self.left_out},
        }
        json.dump(document, file, separators=(",", ":"), allow_nan=False)


def _name(what: str, row: int, word: str) -> dict[str, Any]:
    return {"ph": "M", "tid": row, "name": what, "args": {"name": word}}


def open_new(path: Path) -> TextIO:
    """Create `path`, or the first of trace.2.json and so on that is not there; never replaces a file."""
    others = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in range(2, FILES_MAX + 1))
    for place in (path, *others):
        try:
            return place.open("x", encoding="utf-8")
        except FileExistsError:
            continue
    raise FileExistsError(f"{path} and {FILES_MAX - 1} numbered files beside it are there already")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path)
    same = "as of `p2psgd train`"
    parser.add_argument("--recipe", default="speech", help=same)
    for option in ("--mode", "--payload", "--device"):
        parser.add_argument(option, help=same)
    parser.add_argument("--steps", type=int, help=same)
    given = parser.parse_args()
    events = TraceEvents()
    try:
        recipe = load_recipe(given.recipe, Told(given.mode, given.payload))
        backend = find_backend(given.device or recipe.device)
        with open_new(given.file) as file:
            try:
                train(recipe, steps=given.steps, backend=backend, trace=events)
            finally:
                events.write(file)
    except (OSError, UsageError) as error:
        sys.exit(f"python -m benchmarks.trace: {error}")
    if events.left_out:
        print(f"{file.name} holds the first {len(events.events):,} events, {events.left_out:,} came later")


if __name__ == "__main__":
    main()
