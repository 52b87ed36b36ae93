"""Compression as plain data, for machines and every view: counts that add up, and the ratios made of them.

A description is of a node's own updates (its status), of all nodes' (the report of a local run) or of a
recording. `bits` are sums by what they are for and add up to all bits of the updates, frames included.
`density` is the share of the weights that a mini-batch changes; ratios are null while there is nothing to
divide by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from p2psgd.core.compression import Tally, Tensors
from p2psgd.ops.figures import section, whole

# Tensors described one by one, the largest: 200 bytes each and the names, which all came in one request of
# 64 KiB, fit into an answer.
TENSORS_MAX: Final = 256
BITS: Final = ("remainder", "quotient", "sign", "header", "dense")
COUNTS: Final = ("updates", "mini_batches", "indices", "dense_updates", "blocks", "sign_coded_blocks")

Description = dict[str, Any]


def describe_tally(tally: Tally, weights: int) -> Description:
    """The sums over some updates of a run of `weights` weights."""
    counts = {name: int(getattr(tally, name)) for name in COUNTS}
    bits = {name: int(getattr(tally, f"{name}_bits")) for name in BITS}
    return _with_ratios(counts, bits, weights)


def describe_compression(total: Tally, recent: Tally, tensors: Tensors) -> Description:
    """All updates and the recent ones, as a whole and for each of the largest tensors, in the run's order."""
    sizes = [math.prod(shape) for _, shape in tensors]
    largest = sorted(range(len(sizes)), key=lambda place: -sizes[place])[:TENSORS_MAX]
    rows = []
    for place in sorted(largest):
        row: Description = {
            "name": tensors[place][0],
            "weights": sizes[place],
            "indices": int(total.tensor_indices[place]),
            "step": int(total.tensor_steps[place]),
        }
        row = _with_density(row, total.mini_batches, total.indices)
        recently = _ratio(int(recent.tensor_indices[place]), sizes[place] * recent.mini_batches)
        rows.append({**row, "recent_density": recently})
    return {
        "total": describe_tally(total, sum(sizes)),
        "recent": describe_tally(recent, sum(sizes)),
        "tensors_total": len(sizes),
        "tensors": rows,
    }


def describe_nodes(nodes: Sequence[Mapping[str, Any]], weights: int) -> Description | None:
    """The descriptions of several nodes of one run as one, without the recent updates; None if none has any.

    A node that could only tell its total (lost before it was asked for more) is missing in the tensors.
    """
    totals = [section(node, "total") for node in nodes]
    counts = {name: sum(whole(total, name) for total in totals) for name in COUNTS}
    bits = {name: sum(whole(section(total, "bits"), name) for total in totals) for name in BITS}
    if not counts["updates"]:
        return None
    full = [node for node in nodes if node.get("tensors")]
    mini_batches, indices = (
        sum(whole(section(node, "total"), name) for node in full) for name in ("mini_batches", "indices")
    )
    rows: dict[str, Description] = {}
    for entry in (entry for node in full for entry in node["tensors"]):
        name = str(entry.get("name"))
        fresh = {"name": name, "weights": whole(entry, "weights"), "indices": 0, "step": 0}
        row = rows.setdefault(name, fresh)
        row["indices"] += whole(entry, "indices")
        row["step"] = whole(entry, "step") or row["step"]
    return {
        "total": _with_ratios(counts, bits, weights),
        "tensors_total": max((whole(node, "tensors_total") for node in full), default=0),
        "tensors": [_with_density(row, mini_batches, indices) for row in rows.values()],
    }


def _with_ratios(counts: dict[str, int], bits: dict[str, int], weights: int) -> Description:
    return {
        **counts,
        "density": _ratio(counts["indices"], weights * counts["mini_batches"]),
        "bits": bits,
        "bits_per_index": _ratio(sum(bits.values()), counts["indices"]),
    }


def _with_density(row: Description, mini_batches: int, indices: int) -> Description:
    """`share`: of all indices."""
    density = _ratio(row["indices"], row["weights"] * mini_batches)
    return {**row, "share": _ratio(row["indices"], indices), "density": density}


def _ratio(part: int, of: int) -> float | None:
    return part / of if of else None
