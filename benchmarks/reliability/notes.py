"""Read what the paced trainers noted, and compute from it: pauses, rates, and how long updates travel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

_SENT: Final = re.compile(r"s (\d+) ([\d.]+) ([\d.]+)")
_ARRIVED: Final = re.compile(r"a ([0-9a-f]{16}) (\d+) ([\d.]+)")


@dataclass(slots=True)
class Notes:
    """Times on the monotonic clock. `sent`: when each own mini-batch began to be sent and was, by number;
    `arrived`: when a peer's came, by node id and number.
    """

    sent: dict[int, tuple[float, float]] = field(default_factory=dict)
    arrived: dict[tuple[str, int], float] = field(default_factory=dict)

    def ends(self) -> list[float]:
        """When each mini-batch had been sent, in order."""
        return sorted(end for _, end in self.sent.values())


def parse_notes(path: Path) -> Notes:
    """Parse the notes written so far; a kill may have torn the last line."""
    notes = Notes()
    for line in path.read_text().splitlines() if path.exists() else []:
        if found := _SENT.fullmatch(line):
            notes.sent[int(found[1])] = (float(found[2]), float(found[3]))
        elif found := _ARRIVED.fullmatch(line):
            notes.arrived[found[1], int(found[2])] = float(found[3])
    return notes


def longest_gap_s(times: list[float], begin: float, end: float) -> float:
    """The longest time without a mini-batch that ended, or would have, within `begin` and `end`."""
    before = [time for time in times if time < begin][-1:]
    within = [time for time in times if begin <= time <= end]
    marks = [*before, *within, end] if not within else [*before, *within]
    gaps = [after - earlier for earlier, after in pairwise(marks)]
    return max([*gaps, end - within[-1] if within else 0.0])


def rate(times: list[float], begin: float, end: float) -> float:
    """Mini-batches a second."""
    within = [time for time in times if begin <= time <= end]
    return (len(within) - 1) / (within[-1] - within[0]) if len(within) > 1 else 0.0


def travel_s(notes: Mapping[str, Notes], begin: float, end: float) -> list[float]:
    """Return how long each step sent within that time took to reach the weights of each other node.

    `notes` by node id; what has not arrived is not among them.
    """
    return [
        notes[there].arrived[here, number] - sent
        for here in notes
        for number, (sent, _) in notes[here].sent.items()
        if begin <= sent <= end
        for there in notes
        if there != here and (here, number) in notes[there].arrived
    ]
