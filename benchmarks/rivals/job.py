"""Define what a process on a host is given, and what it notes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

NOTE_EVERY_S: Final = 0.1
SNAPSHOT_EVERY_S: Final = 1.0
GO: Final = "go"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of host `host` among those with these addresses; all share the directory."""

    directory: str
    host: int
    addresses: tuple[str, ...]
    batch: int
    seed: int
    warm_up: int
    setting: dict[str, Any]
    options: dict[str, Any]

    @property
    def hosts(self) -> int:
        return len(self.addresses)

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

    def rate(self, samples: int) -> float:
        """The learning rate when all hosts together have used so many samples."""
        full: float = self.setting["rate"]
        return full * min(1.0, 0.1 + 0.9 * samples / self.warm_up)


class Notes:
    """Lines of JSON: moments of the clock that all processes of a machine share, and mini-batches made here.

    With `snapshots` the weights are written too, every SNAPSHOT_EVERY_S, for somebody else to evaluate.
    """

    def __init__(self, job: Job, *, snapshots: bool) -> None:
        self._directory, self._snapshots = Path(job.directory), snapshots
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

    def made(self, steps: int, weights: Callable[[], NDArray[np.float32]]) -> None:
        """So many in all; `weights` gives them, flat."""
        now = time.monotonic()
        if self._snapshots and now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_EVERY_S
            name = f"weights-{steps}"
            unfinished = self._directory / f"{name}.part"
            weights().tofile(unfinished)
            os.replace(unfinished, self._directory / name)
            self._write(at=now, steps=steps, snapshot=name)
        elif now >= self._next_note:
            self._write(at=now, steps=steps)
        else:
            return
        self._next_note = now + NOTE_EVERY_S

    def _write(self, **fields: Any) -> None:
        with self._path.open("a", encoding="ascii") as file:
            file.write(json.dumps(fields) + "\n")
