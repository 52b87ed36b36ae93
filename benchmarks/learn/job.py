"""Define what a training process is given, and what it answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The task, the way and the place of one training; the fields are those of cases.Task and cases.Way."""

    directory: str
    name: str
    model: str
    optimizer: str
    batch: int
    batches: int
    rates: tuple[float, ...]
    width: int
    layers: int
    context: int
    method: str
    options: dict[str, Any]
    nodes: int
    seed: int
    rate: float

    def write(self) -> Path:
        """Write it for the trainers to read."""
        path = Path(self.directory) / "job.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` has written."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**fields | {"rates": tuple(fields["rates"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result that the first node writes at its end.

    `sent_bytes` are those of this node; None for p2psgd, whose daemon counts them.
    """

    loss: float
    accuracy: float | None
    weights: int
    steps: int
    sent_bytes: float | None

    def write(self, directory: Path) -> None:
        """Write it for the bench to read."""
        (directory / "answer.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read what `write` has written."""
        return cls(**json.loads((directory / "answer.json").read_text(encoding="utf-8")))
