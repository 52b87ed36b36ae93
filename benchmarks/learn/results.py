"""Keep the result of each case in docs/explanation/learning.json, a line for each."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks.learn.cases import CASES, Case, search
from benchmarks.pages import commit, processor

DATA: Final = Path("docs/explanation/learning.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a training. `loss` of unseen samples in nats, NaN if it diverged; `sent_bytes` by a
    node; `steps` of a node; `load` of the machine, before.
    """

    digest: str  # of the case's job
    rate: float
    loss: float
    accuracy: float | None
    sent_bytes: float
    weights: int
    steps: int
    ran_s: float
    load: float
    at: str
    where: str


Results = Mapping[Case, Result]


def read(path: Path = DATA, cases: Sequence[Case] = CASES) -> dict[Case, Result]:
    """Read the results of all present cases whose job is unchanged."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = {case: Result(**rows[case.name]) for case in cases if case.name in rows}
    known = {case: each for case, each in known.items() if each.digest == case.digest(each.rate)}
    return {
        case: each
        for case, each in known.items()
        if case.searched or best_rate(known, case.task, case.way) == each.rate
    }


def keep(case: Case, result: Result, path: Path = DATA, cases: Sequence[Case] = CASES) -> None:
    """Add or replace the result of one case; the file is replaced whole."""
    rows = read(path, cases) | {case: result}
    lines = [f"{json.dumps(each.name)}: {json.dumps(asdict(rows[each]))}" for each in cases if each in rows]
    unfinished = path.with_suffix(".part")
    unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os.replace(unfinished, path)


def best_rate(results: Results, task: str, way: str) -> float | None:
    """Return the rate with the lowest loss; None before all of the search is known, or if all diverged."""
    tried = [results.get(case) for case in search(task, way)]
    losses = {each.rate: each.loss for each in tried if each is not None and math.isfinite(each.loss)}
    if None in tried or not losses:
        return None
    return min(losses, key=lambda rate: losses[rate])


def surroundings() -> str:
    """Return what results depend on beside the job."""
    versions = f"Python {platform.python_version()}, PyTorch {metadata.version('torch')}"
    return f"{os.cpu_count()} x {processor()}, {versions}, commit {commit()}"
