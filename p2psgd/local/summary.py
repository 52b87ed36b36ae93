"""What a local run says at its end, from its report alone: what was trained, and is it the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from p2psgd.ops import numerals
from p2psgd.ops.compression_text import bits_of, fraction
from p2psgd.ops.status_text import recording_words
from p2psgd.ops.step_split import steps_words
from p2psgd.wire.mode import parse_mode

Report = Mapping[str, Any]

COLUMNS = ("node", "mini-batches", "samples", "samples/s", "out", "in", "sent", "received", "loss")
WIDTHS = (8, 12, 10, 10, 8, 8, 9, 9, 6)
OF_UPDATES = ("out", "in")


def summary_text(report: Report) -> str:
    """Return the summary as lines of text."""
    trained = f"recipe {report['recipe']}" if report["recipe"] else "their own trainer"
    weights = numerals.counted(report["weights"], "weight")
    model = f" ({weights}, {report['mode']} mode)" if report["mode"] else ""
    dense = parse_mode(report["mode"]).dense if report["mode"] else False
    nodes, wall_time = numerals.counted(report["nodes"], "node"), numerals.duration(report["wall_s"])
    lines = [
        f"{nodes} trained {trained}{model} in {wall_time}",
        _row(COLUMNS, dense=dense),
        *(_row(_figures(node), dense=dense) for node in report["per_node"]),
        *_notes(report),
        f"replicas       {replicas_sentence(report)}",
    ]
    if report["rounds"] is not None:
        sent = [node["bytes_sent_per_round"] or 0 for node in report["per_node"]]
        rate = numerals.decimals(report["rounds_per_s"], 1)
        lines.append(
            f"rounds         {report['rounds']:,}, {rate} a second, "
            f"{numerals.size(sum(sent) / len(sent))} sent by a node in each"
        )
    if report["step"] is not None:
        lines.append(f"step           {steps_words(report['step'])}")
    if report["test_accuracy"] is not None:
        lines.append(f"test accuracy  {numerals.percent(report['test_accuracy'])}")
    if report["compression_ratio"] is not None:
        lines.append(
            f"compression    {numerals.times(report['compression_ratio'])} against float32 gradients, "
            f"{numerals.decimals(report['bits_per_index'], 2)} bits per index, headers included"
        )
    if report["compression"] is not None:
        total = report["compression"]["total"]
        lines.append(f"{'':<15}= {bits_of(total)}")
        lines.append(f"density        {fraction(total['density'])} of the weights changed by a mini-batch")
    if report["recording"] is not None:
        lines.append(f"recording      {recording_words(report['recording'])}")
    return "\n".join(lines)


def replicas_sentence(report: Report) -> str:
    """Return whether the replicas that are left are identical, and how many there are."""
    live = report["nodes"] - len(report["lost"])
    if not live:
        return "none left"
    if not report["replicas_identical"]:
        return "NOT identical"
    if live == 1:
        return f"one, digest {report['digest']}"
    return f"all {live} identical, byte by byte, digest {report['digest']}"


def lost_sentence(report: Report) -> str:
    """Return what became of the lost nodes and what the others have: why a run with losses fails."""
    lost = [f"{entry['node']} was lost ({entry['why']})" for entry in report["lost"]]
    live = report["nodes"] - len(lost)
    if not live:
        return f"{numerals.listed(lost)}; no replica is left"
    if not report["replicas_identical"]:
        rest = (
            "the other replicas are not identical" if live > 1 else "the other replica is not as it should be"
        )
    else:
        rest = f"the other {live} replicas are identical" if live > 1 else "the other replica is whole"
    return f"{numerals.listed(lost)}; {rest}"


def _row(cells: Sequence[str], *, dense: bool) -> str:
    """Align the cells under the headings; fits 80 columns with counts of up to seven digits. In a dense ring
    there are no updates to count.
    """
    first, *others = (
        (cell, width)
        for heading, cell, width in zip(COLUMNS, cells, WIDTHS, strict=True)
        if not (dense and heading in OF_UPDATES)
    )
    return f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others)


def _figures(node: Report) -> list[str]:
    return [
        node["node"],
        f"{node['steps']:,}",
        numerals.grouped(node["samples"] or None),  # a script may report none
        numerals.grouped(node["samples_per_s"]),
        f"{node['updates_sent']:,}",
        f"{node['updates_applied']:,}",
        numerals.size(node["bytes_sent"]),
        numerals.size(node["bytes_received"]),
        numerals.decimals(node["loss"], 3),
    ]


def _notes(report: Report) -> list[str]:
    """Return a line for each node with which something was out of the ordinary."""
    lost = {entry["node"]: entry["why"] for entry in report["lost"]}
    lines = []
    for node in report["per_node"]:
        facts = [f"lost ({lost[node['node']]})"] if node["node"] in lost else []
        facts += [numerals.counted(node["restarts"], "trainer restart")] if node["restarts"] else []
        facts += [
            f"dropped {count:,} x {reason}" for reason, count in sorted(node["dropped"].items()) if count
        ]
        lines += [f"{node['node']}: {', '.join(facts)}"] if facts else []
    return lines
