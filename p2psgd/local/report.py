"""The report of a local run (`--report`): figures for machines, as JSON without NaN.

Sums are over all nodes, those that were lost included as far as they were heard; `replicas_identical` speaks
of the nodes that were alive at the end. `rounds` and what is said of a round are of a ring, null elsewhere;
`bytes_sent_per_round` counts all that the node sent, however little of it rounds were; `step` is in
ops/step_split.py. `compression_ratio` is 32 bits x weights per mini-batch / bits sent
per mini-batch and peer, headers and frames included. `compression` (see ops/compression.py) is of the own
updates of all nodes; its rows of tensors are of those that could be asked at the end.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2psgd.ops.compression import describe_nodes
from p2psgd.ops.figures import (
    Status,
    node_figures,
    number,
    section,
    total_bits_per_index,
    total_compression_ratio,
    whole,
)
from p2psgd.ops.step_split import describe_steps


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a local run ended."""

    statuses: Sequence[Status]  # one per node, the last one heard, in the order of the shares
    wall_s: float
    recipe: str | None
    speeds: Mapping[str, float | None] = field(default_factory=dict)  # samples/s over the time in training
    identical: bool = False
    digest: int | None = None
    digests: Mapping[str, int] = field(default_factory=dict)  # of the replicas that were compared
    accuracies: Mapping[str, float] = field(
        default_factory=dict
    )  # of these replicas, on the recipe's test samples
    lost: Mapping[str, str] = field(default_factory=dict)  # node -> what became of it
    compression: Mapping[str, Status] = field(default_factory=dict)  # of the nodes that could still be asked


def build_report(outcome: Outcome) -> dict[str, Any]:
    """Return the report as plain values."""
    nodes = [node_figures(status) for status in outcome.statuses]
    run = next((run for status in outcome.statuses if (run := section(status, "run"))), {})
    trainers = [section(status, "trainer") for status in outcome.statuses]
    return {
        "nodes": len(nodes),
        "mode": run.get("mode"),
        "rounds": max((ring["round"] for ring in _rings(outcome)), default=None),
        "rounds_per_s": _rounds_per_s(outcome),
        "step": describe_steps(trainers),
        "weights": whole(run, "weights"),
        "quantum": 2.0 ** whole(run, "quantum_log2") if run else None,
        "wall_s": round(outcome.wall_s, 3),
        "bits_per_index": total_bits_per_index(nodes),
        "compression_ratio": total_compression_ratio(nodes),
        "compression": describe_nodes(
            [
                outcome.compression.get(node.node) or section(status, "compression")
                for node, status in zip(nodes, outcome.statuses, strict=True)
            ],
            whole(run, "weights"),
        ),
        "recording": next(
            (dict(part) for status in outcome.statuses if (part := section(status, "recording"))), None
        ),
        "replicas_identical": outcome.identical,
        "digest": _hexadecimal(outcome.digest),
        "test_accuracy": next(iter(outcome.accuracies.values()), None) if outcome.identical else None,
        "per_node": [_node(status, outcome) for status in outcome.statuses],
        "lost": [{"node": node, "why": why} for node, why in outcome.lost.items()],
        "recipe": outcome.recipe,
    }


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report whole or not at all: a reader never sees a part of it. Raises OSError."""
    text = json.dumps(_finite(report), indent=2, allow_nan=False) + "\n"
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _node(status: Status, outcome: Outcome) -> dict[str, Any]:
    figures = node_figures(status)
    trainer, traffic, updates = (section(status, key) for key in ("trainer", "bytes", "updates"))
    own_accuracy = number(trainer, "test_accuracy")
    rounds = whole(section(status, "ring"), "round")
    return {
        "node": figures.node,
        "steps": figures.mini_batches,
        "samples": figures.samples,
        "samples_per_s": outcome.speeds.get(figures.node),
        "updates_sent": figures.updates_sent,
        "updates_applied": figures.updates_applied,
        "indices_sent": figures.indices_sent,
        "bytes_sent": whole(traffic, "sent"),
        "bytes_received": whole(traffic, "received"),
        "bytes_sent_per_round": whole(traffic, "sent") / rounds if rounds else None,
        "step": describe_steps([trainer]),
        "loss": figures.loss,
        "test_accuracy": outcome.accuracies.get(figures.node, own_accuracy),
        "digest": _hexadecimal(outcome.digests.get(figures.node)),
        "frontier": list(status.get("frontier") or ()),
        "bits_per_index": figures.bits_per_index,
        "compression_ratio": figures.compression_ratio,
        "duplicates": whole(updates, "duplicates"),
        "dropped": dict(section(status, "dropped")),
        "reloads": whole(trainer, "reloads"),
        "copies_mended": whole(trainer, "copies_mended"),
        "restarts": whole(trainer, "restarts"),
    }


def _rings(outcome: Outcome) -> list[Status]:
    return [ring for status in outcome.statuses if (ring := section(status, "ring"))]


def _rounds_per_s(outcome: Outcome) -> float | None:
    """In a ring: how many steps a node took in a second of the time in which it took steps, as a mean."""
    each = [describe_steps([section(status, "trainer")]) for status in outcome.statuses]
    speeds = [1000 / steps["step_ms"] for steps in each if steps is not None]
    return round(sum(speeds) / len(speeds), 3) if speeds and _rings(outcome) else None


def _hexadecimal(digest: int | None) -> str | None:
    return None if digest is None else f"{digest:016x}"


def _finite(value: Any) -> Any:
    """Return the value with null in the place of every NaN and infinity, which JSON has no words for."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {key: _finite(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_finite(entry) for entry in value]
        case _:
            return value
