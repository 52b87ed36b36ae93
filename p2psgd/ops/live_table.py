"""A run at a glance: one row per node, below it in plain words what holds a node up, and what the columns
mean.

A pure function of the nodes' status JSON (see figures.py), drawn to fit 80 columns and, with whole words,
120. It asks nobody for anything and keeps no state: whoever shows it (p2psgd.local) draws it again with newer
statuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2psgd.ops import numerals
from p2psgd.ops.figures import LOST, NodeFigures, Status, node_figures, shared_notes
from p2psgd.ops.ring_text import ring_words

WIDE = 112  # columns from which there is room for whole words in the headings
LAG_VECTOR_NODES_WIDE = (
    8  # up to so many nodes there is room for one lag per peer; above, the largest is shown
)
LAG_VECTOR_NODES = 4  # the same, in 80 columns
STATE_STYLES = {"training": "green", "finished": "cyan", "waiting": "yellow", "draining": "cyan", LOST: "red"}

# (heading in full, heading in brief); the first two stand on the left, figures on the right
HEADINGS = (
    ("node", "node"),
    ("state", "state"),
    ("mini-batch", "batch"),
    ("epoch", "epoch"),
    ("samples/s", "smp/s"),
    ("loss", "loss"),
    ("updates in", "in"),
    ("updates out", "out"),
    ("bits/index", "bits"),
    ("compression", "compr"),
    ("lag", "lag"),
)
ROUND = ("round", "round")
RING_HEADINGS = (*HEADINGS[:-1], ROUND)  # in a round nobody is ahead of anybody
DENSE_HEADINGS = (*HEADINGS[:6], ROUND)  # and where whole gradients go around there are no updates


def live_table(statuses: Sequence[Status], *, title: str, width: int) -> RenderableType:
    """Draw the nodes in the order given; `width` is the number of columns there are.

    A node that has not answered yet may be given as {"node": name}, a lost one with the state "lost (why)".
    """
    nodes = [node_figures(status) for status in statuses]
    wide = width >= WIDE
    ring = ring_words(statuses)
    vector = not ring and 1 < len(nodes) <= (LAG_VECTOR_NODES_WIDE if wide else LAG_VECTOR_NODES)
    padding = (0, 2 if wide else 1, 0, 0)
    table = Table(box=None, pad_edge=False, padding=padding)
    dense = any(node.dense for node in nodes)
    shown = DENSE_HEADINGS if dense else RING_HEADINGS if ring else HEADINGS
    for place, headings in enumerate(shown):
        table.add_column(headings[0 if wide else 1], justify="left" if place < 2 else "right", no_wrap=True)
    for node in nodes:
        lag = _lag_vector(node, nodes) if vector else _lag_most(node, nodes)
        if ring:
            lag = (numerals.grouped if wide else numerals.short)(node.ring_round)
        figures = _figures(node, wide)[: len(shown) - 3]  # between node, state and the last column
        table.add_row(Text(node.node), Text(node.state, style=_style(node)), *map(Text, [*figures, lag]))
    notes = [Text(note, style="red" if LOST in note else "yellow") for note in shared_notes(nodes)]
    legend = Text(_legend(wide=wide, vector=vector, ring=bool(ring), dense=dense), style="dim")
    around = [Text(ring, style="bold")] if ring else []
    return Group(Text(title, style="bold"), table, *around, *notes, legend)


def _style(node: NodeFigures) -> str:
    return STATE_STYLES.get(node.state, "")


def _figures(node: NodeFigures, wide: bool) -> list[str]:
    count = numerals.grouped if wide else numerals.short
    return [
        count(node.mini_batches),
        numerals.decimals(node.epoch, 2),
        count(node.samples_per_s),
        numerals.decimals(node.loss, 3),
        count(node.updates_applied),
        count(node.updates_sent),
        numerals.decimals(node.bits_per_index, 1),
        numerals.times(node.compression_ratio),
    ]


def _lags(node: NodeFigures, nodes: Sequence[NodeFigures]) -> dict[str, int]:
    """Return the lag of each peer that is connected and alive."""
    gone = {row.node for row in nodes if row.state == LOST}
    if node.node in gone:
        return {}
    return {peer.node: peer.lag for peer in node.peers if peer.lag is not None and peer.node not in gone}


def _lag_vector(node: NodeFigures, nodes: Sequence[NodeFigures]) -> str:
    """Return the lag of each peer in the order of the rows, a dot for the node itself."""
    lags = _lags(node, nodes)
    return " ".join("." if row is node else _brief(lags.get(row.node)) for row in nodes)


def _lag_most(node: NodeFigures, nodes: Sequence[NodeFigures]) -> str:
    return _brief(max(_lags(node, nodes).values(), default=None))


def _brief(lag: int | None) -> str:
    """Return a lag in three characters, so that four of them fit: 0, 999, 12k."""
    if lag is None:
        return numerals.UNKNOWN
    return str(lag) if lag < 1_000 else f"{lag // 1_000}k"


def _legend(*, wide: bool, vector: bool, ring: bool, dense: bool) -> str:
    batch = "" if wide else "batch: mini-batches trained; smp/s: samples a second; "
    names = (
        ("updates in", "updates out", "bits/index", "compression") if wide else ("in", "out", "bits", "compr")
    )
    who = "each peer, in the order of the rows," if vector else "the slowest peer"
    lag = "round: the last that is complete" if ring else f"lag: own updates that {who} has not acknowledged"
    if dense:
        return f"{batch}{lag}"
    return (
        f"{batch}{names[0]}: updates applied from peers; {names[1]}: own updates, each goes to every peer; "
        f"{names[2]}: bits sent per changed weight, headers included; "
        f"{names[3]}: size of the gradients as float32 / bytes sent to one peer; "
        f"{lag}"
    )
