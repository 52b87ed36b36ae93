"""kill -9 of one of six owners every ten seconds, with restarts: what counts, and how long others wait."""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.reliability import Report
from benchmarks.reliability.machines import Machine, machines
from p2psgd.base.errors import P2psgdError
from p2psgd.recipes.gradients import evaluate
from tests.chaos import counts
from tests.chaos.trainer import PAUSE, RECIPE
from tests.daemons import assert_replicas_identical, until

NODES: Final = 6
RATE: Final = 20.0  # mini-batches/s
KILLS: Final = 30
EVERY_S: Final = 10.0
QUIET_S: Final = 60.0  # before the first
BACK_AFTER_S: Final = 1.0  # as a service manager starts it again
WINDOW_S: Final = 3.0  # before and after a kill, in which the loss is looked at
LOOK_EVERY_S: Final = 0.5
PAUSE_WANTED_S: Final = 1.0
LIMIT_S: Final = 120.0

Kills = list[tuple[float, float, int]]  # begun and over, on the monotonic clock, of which node
Losses = list[tuple[float, float]]  # on the monotonic clock; of the replica, on the test samples


def run(directory: Path) -> Report:
    report = Report()
    directory /= "owners"
    trainer = f"{sys.executable} -m tests.chaos.trainer"
    with machines(
        NODES, directory=directory, options=(), trainer=lambda notes: f"{trainer} {notes} owners {1 / RATE}"
    ) as (_, nodes):
        for node in nodes:
            node.start()
        until(lambda: all(len(stamps(node)) > RATE for node in nodes), "all train", timeout_s=LIMIT_S)
        losses: Losses = []
        quiet = time.monotonic()
        follow(nodes[0], quiet + QUIET_S, losses)
        kills = kill_in_turn(nodes, losses)
        ended = time.monotonic()
        (directory / PAUSE).touch()
        until(lambda: not any(waiting(node) for node in nodes), "all is covered", timeout_s=LIMIT_S)
        frontier = assert_replicas_identical([node.daemon for node in nodes], timeout_s=LIMIT_S)
        report.add("replicas at the end", "identical, byte by byte", "identical", True)  # or it had raised
        report.details["frontier"] = frontier
        add_pauses(report, nodes, quiet, kills, ended)
        add_losses(report, losses, kills)
        add_counts(report, nodes)
    return report


def stamps(node: Machine) -> list[float]:
    """When its mini-batches ended."""
    lines = node.notes_path.read_text().splitlines() if node.notes_path.exists() else []
    return [float(line) for line in lines if re.fullmatch(r"\d+\.\d{4}", line)]


def waiting(node: Machine) -> int:
    """How many contributions of a node are not covered; 1 if it does not say."""
    return int((node.status().get("owners") or {}).get("waiting", 1))


def follow(node: Machine, until_s: float, losses: Losses) -> None:
    """Note the loss of a node's replica again and again."""
    while (left := until_s - time.monotonic()) > 0:
        try:
            weights = np.ldexp(np.frombuffer(node.daemon.replica()[1], np.int32).astype(np.float32), -20)
            losses.append((time.monotonic(), evaluate(RECIPE, weights[counts.is_net(len(weights))])[0]))
        except P2psgdError:
            pass  # it is not there yet
        time.sleep(min(LOOK_EVERY_S, left))


def kill_in_turn(nodes: Sequence[Machine], losses: Losses) -> Kills:
    """Kill one after the other. The loss is that of a node that was killed long ago."""
    kills: Kills = []
    for number in range(KILLS):
        victim, witness = nodes[number % NODES], nodes[(number + NODES // 2) % NODES]
        begun = time.monotonic()
        victim.kill()
        kills.append((begun, time.monotonic(), victim.number))
        follow(witness, begun + BACK_AFTER_S, losses)
        victim.start()
        follow(witness, begun + EVERY_S, losses)
    return kills


def gaps(ends: Sequence[float], begin: float, end: float, kills: Kills) -> list[float]:
    """The times between two mini-batches of a node that touch [begin, end], but for those in which the node
    itself was killed.
    """
    return [
        later - earlier
        for earlier, later in pairwise(ends)
        if later >= begin and earlier <= end
        if not any(begun <= later and earlier <= over for begun, over, _ in kills)
    ]


def add_pauses(report: Report, nodes: Sequence[Machine], quiet: float, kills: Kills, ended: float) -> None:
    """How long trainers stood still whose nodes were not killed."""
    first, none = kills[0][0], []
    worst = [0.0 for _ in kills]
    for node in nodes:
        ends, own = stamps(node), [kill for kill in kills if kill[2] == node.number]
        none += gaps(ends, quiet, first, kills[:1])
        found = [max(gaps(ends, at, at + EVERY_S, own), default=0.0) for at, _, _ in kills]
        worst = list(map(max, worst, found))
    report.details["longest_gaps_s"] = [round(each, 3) for each in worst]
    report.add(
        f"kill -9 of an owner every {EVERY_S:.0f} s for {ended - first:.0f} s: longest pause of a trainer"
        " whose node is not killed",
        f"{max(worst):.2f} s; median of the longest after each of {len(kills)} kills"
        f" {statistics.median(worst):.2f} s",
        "less than 1 s",
        max(worst) < PAUSE_WANTED_S,
    )
    report.add(f"the same in {first - quiet:.0f} s without a kill", f"{max(none):.2f} s")


def add_losses(report: Report, losses: Losses, kills: Kills) -> None:
    """By how much the loss is higher after a kill than before, beside the same between two kills."""

    def rises(times: list[float]) -> list[float]:
        found = []
        for at in times:
            before = [loss for time_s, loss in losses if at - WINDOW_S <= time_s <= at]
            after = [loss for time_s, loss in losses if at < time_s <= at + WINDOW_S]
            if before and after:  # else the node that was asked had not come back
                found.append(statistics.mean(after) - statistics.mean(before))
        return found

    times = [at for at, _, _ in kills]
    with_kill, without = rises(times), rises([at + EVERY_S / 2 for at in times[:-1]])
    report.details |= {"losses": [[round(at - kills[0][0], 1), round(loss, 4)] for at, loss in losses]}
    report.add(
        f"test loss in the {WINDOW_S:.0f} s after a kill, less before: most; in the middle",
        f"{max(with_kill):+.4f}; {statistics.median(with_kill):+.4f}",
        "no step",
        max(with_kill) <= max(2 * max(map(abs, without)), 0.005),
    )
    report.add("the same between two kills", f"{max(without):+.4f}; {statistics.median(without):+.4f}")
    first = next(loss for at, loss in reversed(losses) if at <= kills[0][0])
    report.add("test loss at the end", f"{losses[-1][1]:.4f}, before the first kill {first:.4f}")


def add_counts(report: Report, nodes: Sequence[Machine]) -> None:
    """Stop all but the first, which then has all that owners have added up, and compare it with the notes."""
    given_up = sum(int((node.status().get("owners") or {}).get("lost", 0)) for node in nodes)
    for node in nodes[:0:-1]:
        assert node.daemon.stop() == 0, node.name
    looks: list[tuple[Any, Any]] = []

    def at_rest() -> bool:
        status = nodes[0].status()
        looks.append((status.get("owners"), status.get("frontier")))
        time.sleep(LOOK_EVERY_S)
        owners = looks[-1][0] or {}
        return owners.get("owners") == 1 and not owners.get("waiting") and looks[-2:-1] == looks[-1:]

    until(at_rest, "the last node has all", timeout_s=LIMIT_S)
    counted = counts.counted(np.frombuffer(nodes[0].daemon.replica()[1], np.int32))
    noted = {node.number: counts.read(node.notes_path.read_text().splitlines()) for node in nodes}
    sums = counts.sums(noted, counted)
    missing = [
        [round(each.ended - float(counted[node, number]), 3) for number, each in stretches.items()]
        for node, stretches in noted.items()
    ]
    report.details |= {"counts": asdict(sums), "missing_in_stretches": missing}
    report.add(
        "mini-batches that count more than once",
        f"{sums.surplus:.1f} of {sums.begun}; {given_up} contributions given up",
        "0",
        sums.surplus < 0.1,
    )
    report.add(
        "mini-batches that do not count: what killed owners had below their thresholds",
        f"{sums.missing:.0f} of {sums.ended}, at most {max(map(max, missing)):.1f} of a stretch",
    )
