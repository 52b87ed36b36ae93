"""Compute figures from the notes of a run, the same for all ways. Seconds count from the common begin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

STILL_S: Final = 5.0  # without a mini-batch at the end of a run: longer than any takes that goes on


@dataclass(frozen=True, slots=True)
class Note:
    """When a host had made so many mini-batches, the file of its weights then, if they were kept, and the
    seconds in which it had computed until then, where that is counted.
    """

    at: float
    steps: int
    snapshot: str = ""
    computed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """On the curve of a run: held-out loss after so many seconds, and samples of all hosts."""

    at: float
    samples: float
    loss: float


class NotesFile:
    """Reads what a host notes, as it comes: whole lines, without the one that reports the host ready."""

    def __init__(self, path: Path, begin: float) -> None:
        self.ready = False
        self.notes: list[Note] = []
        self._path, self._begin, self._read = path, begin, 0

    def look(self) -> list[Note]:
        """Return the new notes."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        lines = [json.loads(line) for line in whole.splitlines()]
        self.ready = self.ready or any("ready" in line for line in lines)
        new = [
            Note(line["at"] - self._begin, line["steps"], line.get("snapshot", ""), line.get("computed_s"))
            for line in lines
            if "steps" in line
        ]
        self.notes += new
        return new


def steps_at(notes: Sequence[Note], at: float) -> float:
    """Return the steps made at a time, interpolated between two notes, and from the begin to the first."""
    for before, after in pairwise([Note(0.0, 0), *notes]):
        if before.at <= at < after.at:
            part = (at - before.at) / (after.at - before.at)
            return before.steps + part * (after.steps - before.steps)
    return float(notes[-1].steps) if notes else 0.0


def crossing(points: Sequence[Point], target: float) -> Point | None:
    """Where the loss first is the target: on the line between the two snapshots around it."""
    for number, after in enumerate(points):
        if after.loss > target:
            continue
        if number == 0:
            return after
        before = points[number - 1]
        part = (before.loss - target) / (before.loss - after.loss)
        return Point(
            before.at + part * (after.at - before.at),
            before.samples + part * (after.samples - before.samples),
            target,
        )
    return None


def rate(notes: Sequence[Note], since: float, until: float) -> float:
    """Mini-batches a second of a host within these seconds; 0 if it made none."""
    inside = [note for note in notes if since <= note.at <= until]
    if len(inside) < 2:
        return 0.0
    first, last = inside[0], inside[-1]
    return (last.steps - first.steps) / (last.at - first.at)


def computing(notes: Sequence[Note], since: float, until: float) -> float | None:
    """The part of these seconds in which a host computed; None where that is not counted."""
    inside = [note for note in notes if since <= note.at <= until and note.computed_s is not None]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    assert first.computed_s is not None
    assert last.computed_s is not None
    return (last.computed_s - first.computed_s) / (last.at - first.at)


def pause(notes: Sequence[Note], since: float, until: float) -> float | None:
    """The longest time without a mini-batch from `since` on, that before the first included, of a host that
    made one later; None of one that made none any more, but perhaps what was under way at `since`.
    """
    moments = [since, *(note.at for note in notes if since < note.at <= until)]
    longest = max((after - before for before, after in pairwise(moments)), default=0.0)
    if len(moments) == 1 or until - moments[-1] > max(longest, STILL_S):
        return None
    return longest
