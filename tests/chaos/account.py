"""The account of a run: figures for machines, and a text of them for people. Pure."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Final

from p2psgd.cli.local.verify import Origin
from tests.chaos.chaos import Deed
from tests.chaos.counts import Sums
from tests.chaos.events import Event, counts, ready_after
from tests.chaos.faults import Fault, KilledDaemon, Stopped, kind, nodes_hit
from tests.chaos.nodes import Life, Node
from tests.chaos.quiet import QuietPoint

# How long after a fault the others' mini-batches are looked at, and after which ones.
WINDOW_S: Final = 5.0
PAUSES: Final[Mapping[str, type[Fault]]] = {"kills of daemons": KilledDaemon, "stops of daemons": Stopped}


def longest_pause(stamps: Sequence[float], start: float, end: float) -> float | None:
    """The longest time between two mini-batches that touches [start, end]; None without any around it.

    `stamps`: when mini-batches ended, ascending. One that was begun and has not ended by `end`
    counts up to there.
    """
    first = bisect.bisect_right(stamps, start) - 1
    if first < 0:
        return None
    times = list(stamps[first : bisect.bisect_right(stamps, end)])
    times.append(max(end, times[-1]))
    return max(later - earlier for earlier, later in pairwise(times))


def pauses_after(
    what: type[Fault], rounds: Sequence[tuple[Sequence[Deed], float]], stamps: Mapping[int, Sequence[float]]
) -> list[tuple[float, int, float]]:
    """Of each such fault the longest pause of any untouched node's mini-batches, in seconds; the node; and
    when the fault was.

    `rounds`: what was done in each and when it was healed; `stamps` by node. A node is untouched if nothing
    was done to it in that round up to the window's end.
    """
    pauses = []
    for deeds, healed in rounds:
        for deed in deeds:
            if not (deed.hit and isinstance(deed.fault, what)):
                continue
            end = min(deed.began + WINDOW_S, healed)
            touched = {node for each in deeds if each.began <= end for node in nodes_hit(each.fault)}
            found = [
                (pause, node, deed.began)
                for node, times in stamps.items()
                if node not in touched and (pause := longest_pause(times, deed.began, end)) is not None
            ]
            if found:
                pauses.append(max(found))
    return pauses


def made_and_lost(told: Mapping[Origin, int], arrived: Mapping[Origin, int]) -> tuple[int, int]:
    """How many updates all lives have made, and how many of them no replica holds at the end.

    `told`: the last that each life's status said it had made; `arrived`: what replicas have, which may be
    more of a life that ended after its last status.
    """
    made = sum(max(sequence, arrived.get(origin, 0)) for origin, sequence in told.items())
    lost = sum(max(0, sequence - arrived.get(origin, 0)) for origin, sequence in told.items())
    return made, lost


def build(
    *,
    seed: int,
    began: float,
    wall_s: float,
    nodes: Sequence[Node],
    rounds: Sequence[tuple[Sequence[Deed], float]],
    quiet_points: Sequence[QuietPoint],
    sums: Sums,
    findings: Sequence[str],
) -> dict[str, Any]:
    """All figures, JSON-ready."""
    lives = [life for node in nodes for life in node.lives]
    told = {
        (life.status["id"], life.status["incarnation"]): life.status["updates"]["sent"]
        for life in lives
        if life.status.get("updates")
    }
    made, lost = made_and_lost(told, _arrived(nodes, quiet_points))
    stamps = {node.number: node.stamps() for node in nodes}
    deeds = [deed for done, _ in rounds for deed in done]
    told_events = {node.number: node.events() for node in nodes}
    return {
        "seed": seed,
        "wall_s": round(wall_s, 1),
        "passed": not findings,
        "findings": list(findings),
        "faults": dict(sorted(Counter(kind(deed.fault) for deed in deeds if deed.hit).items())),
        "faults_that_found_nobody": sum(not deed.hit for deed in deeds),
        "quiet_points": [_quiet_point(point) for point in quiet_points],
        "updates": {"made": made, "lost": lost},
        "mini_batches": asdict(sums),
        "counts": dict(sum((_counts(life) for life in lives), Counter[str]())),
        "events": counts(event for events in told_events.values() for event in events),
        "abandoned": [
            f"{node.name}: {event.words}"
            for node in nodes
            for event in told_events[node.number]
            if event.kind == "abandoned"
        ],
        "ready": [
            _ready(node, life, began, told_events[node.number]) for node in nodes for life in node.lives
        ],
        "pauses": {
            name: [
                {"pause_s": round(pause, 3), "node": f"node-{node}", "at_s": round(at - began, 3)}
                for pause, node, at in pauses_after(what, rounds, stamps)
            ]
            for name, what in PAUSES.items()
        },
        "nodes": [_node(node, len(stamps[node.number])) for node in nodes],
    }


def _arrived(nodes: Sequence[Node], quiet_points: Sequence[QuietPoint]) -> Mapping[Origin, int]:
    """The last update of each life in any replica at the end: in mode `owners` a node also makes some when it
    stops.
    """
    arrived = dict(quiet_points[-1].frontier if quiet_points else {})
    for node in nodes:
        for row in node.lives[-1].status.get("frontier") or [] if node.lives else []:
            origin = row["id"], row["incarnation"]
            arrived[origin] = max(row["sequence"], arrived.get(origin, 0))
    return arrived


def _ready(node: Node, life: Life, began: float, events: Sequence[Event]) -> dict[str, Any]:
    """How many seconds after its start, which was `at_s`, a life was READY; None if it never was."""
    seconds = ready_after(events, life.began_at, life.ended_at)
    return {
        "node": node.name,
        "at_s": round(life.began - began, 1),
        "after_s": None if seconds is None else round(seconds, 3),
    }


def _quiet_point(point: QuietPoint) -> dict[str, Any]:
    return {
        "at_s": round(point.at_s, 1),
        "took_s": round(point.took_s, 2),
        "origins": len(point.frontier),
        "updates": sum(point.frontier.values()) if point.evaluation is None else point.evaluation,
        "digest": point.digest,
        "test_accuracy": point.test_accuracy,
        "equal": not point.findings,
    }


def _counts(life: Life) -> Counter[str]:
    """What a life's last status counted, as far as it counts."""
    status = life.status
    counts = Counter[str](status.get("counters") or {})
    counts["trainer_restarts"] += status.get("trainer", {}).get("restarts", 0)
    counts["duplicates"] += (status.get("updates") or {}).get("duplicates", 0)
    return counts


def _node(node: Node, steps: int) -> dict[str, Any]:
    return {
        "node": node.name,
        "steps": steps,
        "rss_kib_max": max((life.rss_kib_max for life in node.lives), default=0),
        "lives": [
            {
                "exit_code": life.code,
                "asked": sorted(signal.name for signal in life.asked),
                "rss_kib": [memory.rss_kib for memory in life.memories],
                "own_kib": [memory.own_kib for memory in life.memories],
                "log_bytes": [memory.log_bytes for memory in life.memories],
                "descriptors": [memory.descriptors for memory in life.memories],
            }
            for life in node.lives
        ],
    }


def text(account: Mapping[str, Any]) -> str:
    """The account for people, without a newline at the end."""
    lines = [f"chaos of {account['wall_s']:.0f} s, seed {account['seed']}", "", "faults"]
    lines += [f"  {count:>5}  {name}" for name, count in account["faults"].items()]
    lines += [f"  {account['faults_that_found_nobody']:>5}  found nobody to happen to", "", "quiet points"]
    lines += ["  at s    equal after s   origins    updates   test accuracy   digest"]
    for point in account["quiet_points"]:
        accuracy = "" if point["test_accuracy"] is None else f"{100 * point['test_accuracy']:.1f} %"
        took = f"{point['took_s']:.1f}" if point["equal"] else "NOT EQUAL"
        lines.append(
            f"  {point['at_s']:>5.0f}  {took:>14}  {point['origins']:>8}  {point['updates']:>9}  "
            f"{accuracy:>14}   {point['digest'] or ''}".rstrip()
        )
    updates, sums = account["updates"], account["mini_batches"]
    lines += ["", f"updates: {updates['made']} made, {updates['lost']} lost"]
    lines += [
        f"mini-batches: {sums['begun']} begun, {sums['ended']} ended, {sums['missing']:.1f} of these do not "
        f"count, {sums['surplus']:.1f} count too often"
    ]
    lines += [
        "counted by all lives: " + ", ".join(f"{name} {count}" for name, count in account["counts"].items())
    ]
    lines += [
        "told by all nodes' events: "
        + ", ".join(f"{kind} {count}" for kind, count in account["events"].items())
    ]
    lines += [f"abandoned: {words}" for words in account["abandoned"]]
    if ready := sorted(
        (life for life in account["ready"] if life["after_s"]), key=lambda life: life["after_s"]
    ):
        late = ", ".join(
            f"{life['after_s']:.1f} s ({life['node']} at {life['at_s']:.0f} s)" for life in ready[-6:]
        )
        median = ready[len(ready) // 2]["after_s"]
        lines += [f"from start to READY in {len(ready)} lives: median {median:.1f} s, longest {late}"]
    for name, found in account["pauses"].items():
        if pauses := sorted(found, key=lambda each: float(each["pause_s"])):
            longest = ", ".join(
                f"{each['pause_s']:.2f} s ({each['node']}, at {each['at_s']:.0f} s)" for each in pauses[-3:]
            )
            median = pauses[len(pauses) // 2]["pause_s"]
            lines += [
                f"pauses of others' mini-batches after {len(pauses)} {name}: "
                f"median {median:.2f} s, longest {longest}"
            ]
    lines += ["", "nodes    lives  mini-batches  RSS MiB, largest  at the last quiet point  descriptors"]
    lines += [_node_line(node) for node in account["nodes"]]
    lines += ["", *(f"failed: {finding}" for finding in account["findings"])]
    return "\n".join(lines).rstrip() + ("\n\npassed" if account["passed"] else "")


def _node_line(node: Mapping[str, Any]) -> str:
    remembered = [life for life in node["lives"] if life["rss_kib"]]
    rss, descriptors = "", ""
    if remembered:
        rss = f"{remembered[-1]['rss_kib'][-1] / 1024:.0f}"
        descriptors = str(remembered[-1]["descriptors"][-1])
    return (
        f"{node['node']:<8} {len(node['lives']):>5}  {node['steps']:>12}  "
        f"{node['rss_kib_max'] / 1024:>16.0f}  {rss:>23}  {descriptors:>11}"
    )
