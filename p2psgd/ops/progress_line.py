"""A run in one line, for logs and pipes, where no table can be redrawn. A pure function of the statuses."""

from __future__ import annotations

from collections.abc import Sequence

from p2psgd.ops import numerals
from p2psgd.ops.figures import (
    LOST,
    NodeFigures,
    Status,
    node_figures,
    shared_notes,
    total_bits_per_index,
    total_compression_ratio,
)
from p2psgd.ops.ring_text import ring_words


def progress_line(statuses: Sequence[Status]) -> str:
    """Return the states, the sums over all nodes and whatever holds some up."""
    nodes = [node_figures(status) for status in statuses]
    live = [node for node in nodes if node.state != LOST]
    facts = [", ".join(_states(nodes)), _mini_batches(live)]
    speeds = [node.samples_per_s for node in live if node.samples_per_s]
    facts += [f"{numerals.grouped(sum(speeds))} samples/s"] if speeds else []
    if not speeds and (paces := [node.mini_batches_per_s for node in live if node.mini_batches_per_s]):
        facts.append(f"{numerals.decimals(sum(paces), 1)} mini-batches/s")
    losses = [node.loss for node in live if node.loss is not None]
    facts += [f"loss {sum(losses) / len(losses):.3f}"] if losses else []
    bits, ratio = total_bits_per_index(nodes), total_compression_ratio(nodes)
    facts += [f"{numerals.decimals(bits, 1)} bits per index"] if bits is not None else []
    facts += [f"compression {numerals.times(ratio)}"] if ratio is not None else []
    gone = {node.node for node in nodes if node.state == LOST}
    lag = max((peer.lag or 0 for node in live for peer in node.peers if peer.node not in gone), default=0)
    ring = ring_words(statuses)
    facts += [f"largest lag {lag}"] if lag and not ring else []
    return "; ".join(filter(None, [", ".join(filter(None, facts)), ring, *shared_notes(nodes)]))


def _states(nodes: Sequence[NodeFigures]) -> list[str]:
    states = [node.state for node in nodes]
    return [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]


def _mini_batches(nodes: Sequence[NodeFigures]) -> str:
    counts = [node.mini_batches for node in nodes]
    least, most = min(counts, default=0), max(counts, default=0)
    if not most:
        return ""
    return f"mini-batch {least:,}" if least == most else f"mini-batches {least:,} to {most:,}"
