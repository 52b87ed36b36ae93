"""Measure what faults cost: real daemons and trainers on a LAN of network namespaces, one experiment a
module.

`python -m benchmarks.reliability [--only NAME]` prints measured beside wanted and writes
docs/explanation/reliability_figures.*; it needs root and about twenty minutes of a quiet machine. An
experiment is a module here with `run(directory: Path) -> Report`, named in `EXPERIMENTS`. Missed targets are
marked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

EXPERIMENTS: Final = (
    "kill",
    "join",
    "stopped",
    "power_cut",
    "flip",
    "owner_kill",
)  # in the order of printing


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; `met` is None where nothing was promised."""

    what: str
    measured: str
    wanted: str = ""
    met: bool | None = None


@dataclass(slots=True)
class Report:
    """Result of an experiment: `rows` for people, `details` (JSON-ready) for machines."""

    rows: list[Row] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def add(self, what: str, measured: str, wanted: str = "", met: bool | None = None) -> None:
        """Add a line."""
        self.rows.append(Row(what, measured, wanted, met))
