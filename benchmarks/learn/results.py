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

from benchmarks.learn.cases import CASES, TASKS, Case, first_rates, search
from benchmarks.pages import commit, processor

DATA: Final = Path("docs/explanation/learning.json")
AS_GOOD: Final = (
    0.005  # of the lowest loss: so much above it a lower rate is taken, which fails with fewer seeds
)


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
    """Read the results of all present cases whose job is unchanged, of other seeds only those at the rate
    that is the best one now.
    """
    known = _kept(path, cases)
    return {
        case: each
        for case, each in known.items()
        if case.searched or best_rate(known, case.task, case.way, case.nodes) == each.rate
    }


def _kept(path: Path, cases: Sequence[Case]) -> dict[Case, Result]:
    """Read all results whose job is unchanged, at whatever rate."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = {case: Result(**rows[case.name]) for case in cases if case.name in rows}
    return {case: each for case, each in known.items() if each.digest == case.digest(each.rate)}


def keep(case: Case, result: Result, path: Path = DATA, cases: Sequence[Case] = CASES) -> None:
    """Add or replace the result of one case; the file is replaced whole."""
    rows = _kept(path, cases) | {case: result}
    lines = [f"{json.dumps(each.name)}: {json.dumps(asdict(rows[each]))}" for each in cases if each in rows]
    unfinished = path.with_suffix(".part")
    unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os.replace(unfinished, path)


def best_rate(results: Results, task: str, way: str, nodes: int) -> float | None:
    """Return the lowest rate whose loss is as good as the lowest; None before the search has ended, or if all
    diverged.
    """
    cases = search(task, way, nodes)
    if any(needed(results, case) and case not in results for case in cases):
        return None
    return _best_tried(results, task, way, nodes)


def needed(results: Results, case: Case) -> bool:
    """Return whether the case is wanted: of a search only the three rates in the middle of the list, and the
    neighbours of the best rate so far, so that the search goes on while the best one is at its edge.
    """
    first = first_rates(case.task)
    if case.rate is None or case.rate in first:
        return True
    losses = _tried(results, case.task, case.way, case.nodes)
    if not losses:
        return False
    rates = TASKS[case.task].rates
    places = [rates.index(rate) for rate in _as_good(losses)]
    return any(case.rate in rates[max(0, place - 1) : place + 2] for place in places)


def _best_tried(results: Results, task: str, way: str, nodes: int) -> float | None:
    return min(_as_good(_tried(results, task, way, nodes)), default=None)


def _as_good(losses: Mapping[float, float]) -> list[float]:
    """Return the rates with the lowest loss, or one as good."""
    return [rate for rate, loss in losses.items() if loss <= (1 + AS_GOOD) * min(losses.values())]


def _tried(results: Results, task: str, way: str, nodes: int) -> dict[float, float]:
    """Return the loss of each rate of the search that did not diverge."""
    return {
        result.rate: result.loss
        for case in search(task, way, nodes)
        if (result := results.get(case)) is not None and math.isfinite(result.loss)
    }


def surroundings() -> str:
    """Return what results depend on beside the job."""
    versions = f"Python {platform.python_version()}, PyTorch {metadata.version('torch')}"
    return f"{os.cpu_count()} x {processor()}, {versions}, commit {commit()}"
