"""Define what a process on a host is given, and what it notes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.cases import Task
from benchmarks.rivals.tasks import TASKS

NOTE_EVERY_S: Final = 0.1
GO: Final = "go"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of host `host` among those with these addresses; all share the directory."""

    directory: str
    host: int
    addresses: tuple[str, ...]
    task_name: str
    seed: int
    setting: dict[str, Any]
    options: dict[str, Any]

    @property
    def hosts(self) -> int:
        return len(self.addresses)

    @property
    def task(self) -> Task:
        return TASKS[self.task_name]

    @property
    def notes_path(self) -> Path:
        return Path(self.directory) / f"host-{self.host}.notes"

    def write(self) -> Path:
        path = Path(self.directory) / f"host-{self.host}.job"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**fields | {"addresses": tuple(fields["addresses"])})

    @classmethod
    def given(cls) -> Self:
        """The one that the command line names."""
        return cls.read(Path(sys.argv[1]))


class Notes:
    """Lines of JSON: moments of the clock that all processes of a machine share, and mini-batches made here.

    With `snapshots` the weights are written too, as often as the task says, for somebody else to evaluate.
    `keep` is called before each, to write what a process that goes on from it needs beside the weights.
    """

    def __init__(self, job: Job, *, snapshots: bool, keep: Callable[[], None] | None = None) -> None:
        self._directory, self._snapshots, self._keep = Path(job.directory), snapshots, keep
        self._every_s = job.task.snapshot_every_s
        self._path = job.notes_path
        self._next_note = self._next_snapshot = 0.0

    def await_go(self) -> None:
        """Say that this host is ready, and begin with all others."""
        self._write(at=time.monotonic(), ready=True)
        go = self._directory / GO
        while not go.exists():
            time.sleep(0.01)
        begin = float(go.read_text())
        time.sleep(max(0.0, begin - time.monotonic()))
        self._next_snapshot = time.monotonic()

    def made(
        self, steps: int, weights: Callable[[], NDArray[np.float32]], *, computed_s: float | None = None
    ) -> None:
        """So many in all; `weights` gives them, flat; `computed_s` of the time were spent computing."""
        now = time.monotonic()
        fields: dict[str, Any] = {"at": now, "steps": steps}
        if computed_s is not None:
            fields["computed_s"] = round(computed_s, 4)
        if self._snapshots and now >= self._next_snapshot:
            self._next_snapshot = now + self._every_s
            name = f"weights-{steps}"
            unfinished = self._directory / f"{name}.part"
            weights().tofile(unfinished)
            if self._keep is not None:
                self._keep()
            os.replace(unfinished, self._directory / name)
            self._write(**fields, snapshot=name)
        elif now >= self._next_note:
            self._write(**fields)
        else:
            return
        self._next_note = now + NOTE_EVERY_S

    def _write(self, **fields: Any) -> None:
        with self._path.open("a", encoding="ascii") as file:
            file.write(json.dumps(fields) + "\n")


def last_snapshot(notes: Iterable[Path]) -> tuple[str, int] | None:
    """Return the newest file of weights that these notes name, and its number of mini-batches."""
    lines = [json.loads(line) for path in notes if path.exists() for line in path.read_text().splitlines()]
    found = [(line["at"], line["snapshot"], line["steps"]) for line in lines if "snapshot" in line]
    return max(found)[1:] if found else None
