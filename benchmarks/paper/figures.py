"""Keep the figures of each case in docs/explanation/results.json."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.pages import commit, processor
from benchmarks.paper.cases import CASES, Case
from benchmarks.paper.plain import Curve
from p2psgd.cli.local.report import write_report

DATA: Final = Path("docs/explanation/results.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one training. Those of compression are None for plain SGD, `socket_ratio` also of one node
    alone.

    `ratio`: bytes of float32 gradients over bytes of the updates, headers and frames included.
    `weights_per_index`: the same with 32 bits for each index and no headers, as the paper counts.
    `socket_ratio`: over all bytes that the nodes' sockets sent, whatever they were for.
    """

    digest: str  # of the case's recipe
    weights: int
    accuracy: float
    curve: Curve
    training_s: float
    samples: int
    steps: int
    ratio: float | None = None
    weights_per_index: float | None = None
    socket_ratio: float | None = None
    bits_per_index: float | None = None
    load: float  # of the machine, before
    where: str
    start: str | None = None  # digest of the weights it began with; None: of before it was kept

    def began_with(self, other: Figures) -> bool:
        """Return whether both began with the same weights, as far as that is known."""
        return None in (self.start, other.start) or self.start == other.start


def of_report(case: Case, report: Mapping[str, Any], curve: Curve, *, load: float, start: str) -> Figures:
    """Take the figures from a report of `p2psgd local`."""
    nodes, weights = report["per_node"], report["weights"]
    steps, indices = (sum(node[key] for node in nodes) for key in ("steps", "indices_sent"))
    sent, dense = sum(node["bytes_sent"] for node in nodes), 4 * weights * steps
    return Figures(
        digest=case.digest,
        weights=weights,
        accuracy=report["test_accuracy"],
        curve=curve,
        training_s=report["wall_s"],
        samples=sum(node["samples"] for node in nodes),
        steps=steps,
        ratio=report["compression_ratio"],
        weights_per_index=weights * steps / indices,
        socket_ratio=dense * (len(nodes) - 1) / sent if len(nodes) > 1 else None,
        bits_per_index=report["bits_per_index"],
        load=load,
        where=surroundings(),
        start=start,
    )


def read(path: Path = DATA) -> dict[Case, Figures]:
    """Read the figures of all present cases whose recipe is unchanged."""
    rows: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = {
        case: Figures(
            **rows[case.name] | {"curve": [(epoch, right) for epoch, right in rows[case.name]["curve"]]}
        )
        for case in CASES
        if case.name in rows
    }
    return {case: figures for case, figures in found.items() if figures.digest == case.digest}


def keep(case: Case, figures: Figures, path: Path = DATA) -> None:
    """Add or replace the figures of one case; the file is replaced whole."""
    rows = {known.name: asdict(row) for known, row in read(path).items()} | {case.name: asdict(figures)}
    write_report(path, rows)


def surroundings() -> str:
    """Return what the figures depend on beside the recipe."""
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{os.cpu_count()} x {processor()}, {versions}, commit {commit()}"
