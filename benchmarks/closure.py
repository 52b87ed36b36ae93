"""Evaluations of four members of which one computes at a quarter of the others' speed, with backup tasks and
without, beside the ideal; and what an evaluation of a large model sends.

Members compute by sleeping, so their speeds are as they should be however busy the machine is. Ideal: the
work of all portions divided by the speeds of all members together. Bytes are those of a node's status over
its links, both ways, beside 2 (N - 1) / N times 8 bytes a weight each way. The time of an evaluation whose
gradient costs nothing is beside gloo's sum of as many float64, by as many processes on the same machine.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks import Figure, checksum
from benchmarks.ring.contenders import has_gloo, plain
from benchmarks.ring.hosts import loopback
from p2psgd.core.closure.portions import Dealer
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports

LIMIT_S: Final = 400
SCRIPT: Final = """
import json, sys, time
from pathlib import Path
import numpy as np
import p2psgd

folder, weights, portions, evaluations = Path(sys.argv[1]), *map(int, sys.argv[2:5])
paces = json.loads(sys.argv[5])
gradient = np.random.default_rng(1).normal(size=weights)
with p2psgd.attach(np.zeros(weights, np.float32), mode="closure") as link:
    pace = paces[int(link.node[1:])]
    def loss_and_gradient(x, part):
        time.sleep(pace * len(part))
        return 1.0, gradient
    ends = []
    for number in range(evaluations):
        point = np.full(weights, float(number))
        value, total = link.evaluate(loss_and_gradient, point, portions, portions=portions)
        ends.append(time.monotonic())
    (folder / f"{link.node}.new").write_text(json.dumps([ends, total[:1000].tobytes().hex()]))
    (folder / f"{link.node}.new").rename(folder / f"{link.node}.json")
    while not link.stopping and not (folder / "end").exists():
        time.sleep(0.1)
"""


def evaluate(
    folder: Path,
    paces: list[float],
    *,
    weights: int,
    portions: int,
    evaluations: int,
    backups: bool = True,
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return, of each node, when its evaluations ended and what they came to; and its status then."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    ports = free_ports(len(paces))
    (folder / "hosts.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
    script = [str(folder / "train.py"), str(folder), *map(str, (weights, portions, evaluations))]
    script.append(json.dumps(paces))
    program = [sys.executable, "-m", "p2psgd" if backups else "benchmarks.closure"]
    daemons = [
        Daemon(
            folder / f"n{number}",
            *("--peers", str(folder / "hosts.txt"), "--listen", f"127.0.0.1:{port}"),
            *("--trainer", shlex.join([sys.executable, *script])),
            program=program,
        )
        for number, port in enumerate(ports)
    ]
    places = [folder / f"n{number}.json" for number in range(len(paces))]
    with all_stopped(daemons):
        until(lambda: all(place.exists() for place in places), "all have ended", timeout_s=LIMIT_S)
        time.sleep(0.5)
        statuses = [each.status() or {} for each in daemons]
        (folder / "end").touch()
    return [json.loads(place.read_text()) for place in places], statuses


def time_gloo(nodes: int, count: int) -> float:
    """Return the seconds in which gloo sums float64 (count,) of as many processes: the median of five."""
    with loopback(nodes) as hosts, plain("gloo", hosts, count) as gloo:
        gloo.round("float64")
        return statistics.median(gloo.round("float64")[0] for _ in range(5))


def run(*, large: bool) -> list[Figure]:
    """Large: portions of 0.2 s; 14.6 M weights."""
    portions, fast_s, evaluations = (64, 0.2, 7) if large else (12, 0.02, 3)
    paces = [fast_s] * 3 + [4 * fast_s]
    ideal_s = portions / sum(1 / pace for pace in paces)
    figures, results = [], set()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for backups in (True, False):
            found, _ = evaluate(
                folder / f"backups-{backups}",
                paces,
                weights=1000,
                portions=portions,
                evaluations=evaluations,
                backups=backups,
            )
            results |= {bits for _, bits in found}
            # The first evaluation is made twice, for its limits; members may also come one after the other.
            ends = sorted(min(each) for each in zip(*(times for times, _ in found), strict=True))
            took = [later - sooner for sooner, later in pairwise(ends[1:])]
            name = "with backup tasks" if backups else "without"
            figures.append(
                Figure(name, statistics.median(took) / ideal_s, "x the ideal", f"of {ideal_s:.2f} s")
            )
        weights, nodes = (14_600_000, 2) if large else (100_000, 2)
        _, few = evaluate(folder / "few", [0.0] * nodes, weights=weights, portions=4, evaluations=2)
        found, more = evaluate(folder / "more", [0.0] * nodes, weights=weights, portions=4, evaluations=6)
        sent = [
            (late["bytes"]["sent"] - soon["bytes"]["sent"]) / 4 for soon, late in zip(few, more, strict=True)
        ]
        limit = 2 * (nodes - 1) / nodes * 8 * weights
        note = f"of a member of {nodes}, {weights} weights; limit {limit / 1e6:.3g} MB"
        took_s = statistics.median(later - sooner for sooner, later in pairwise(found[0][0][1:]))
    assert len(results) == 1
    figures.append(Figure("sent for an evaluation", statistics.mean(sent) / limit, "x the limit", note))
    figures.append(Figure("an evaluation", took_s, "s", f"{nodes} members, {weights} weights, 4 portions"))
    if has_gloo():
        gloo_s = time_gloo(nodes, weights)
        note = f"as many numbers, {gloo_s / took_s:.2f} of an evaluation's time"
        figures.append(Figure("gloo's sum of float64", gloo_s, "s", note))
    bits = checksum(bytes.fromhex(results.pop()))
    note = f"target 1.15, of {ideal_s:.2f} s, {bits}"
    return [Figure(figures[0].name, figures[0].value, figures[0].unit, note), *figures[1:]]


if __name__ == "__main__":  # a daemon without backup tasks
    from p2psgd.cli.app import main

    Dealer._lease_again = lambda *_: None  # type: ignore[method-assign]
    main()
