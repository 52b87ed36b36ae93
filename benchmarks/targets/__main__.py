"""Measures the time to a target loss: `python -m benchmarks.targets`; prints a table."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.targets import SHAPE, Way, frames
from p2psgd.recipes.gradients import loss_and_accuracy
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports

RATES: Final = {Way.LBFGS: (0.0,), Way.DOWNPOUR: (0.01, 0.03), Way.ASYNC: (0.1, 0.2)}
START_S: Final = 120


@dataclass(frozen=True, slots=True)
class Found:
    """A run: its rate, seconds to the target (None: not in the time given), and the loss at its end."""

    rate: float
    seconds: float | None
    loss: float


def reach(way: Way, rate: float, nodes: int, arguments: argparse.Namespace) -> Found:
    """Train until node n0 has the target loss, or the time is over."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        ports = free_ports(nodes)
        (folder / "hosts.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
        (folder / "weights").mkdir()
        script = [sys.executable, "-m", "benchmarks.targets.trainer", way, f"{rate:g}"]
        script += [f"{arguments.pace:g}", str(folder / "weights")]
        options = ("--peers", str(folder / "hosts.txt"), "--trainer", shlex.join(script))
        daemons = [
            Daemon(folder / f"n{number}", "--listen", f"127.0.0.1:{port}", *options)
            for number, port in enumerate(ports)
        ]
        weights = folder / "weights"
        with all_stopped(daemons):
            until(
                lambda: len(list(weights.glob("*.here"))) == nodes, "all nodes are there", timeout_s=START_S
            )
            (weights / "begin").touch()
            losses: dict[Path, float] = {}
            limit = time.monotonic() + arguments.limit / nodes + arguments.spare
            while time.monotonic() < limit:
                time.sleep(1.0)
                newest = max(weights.glob("[0-9]*.npy"), default=None)
                if newest is None or newest in losses:
                    continue
                losses[newest] = loss_of(newest)
                if losses[newest] <= arguments.target:
                    break
            # Of what came while it looked at others, all since the last one that was above the target.
            above = max((place for place, loss in losses.items() if loss > arguments.target), default=Path())
            for place in weights.glob("[0-9]*.npy"):
                if place > above and place not in losses:
                    losses[place] = loss_of(place)
            curve = sorted((float(place.stem), loss) for place, loss in losses.items())
    return Found(rate, crossing(curve, arguments.target), curve[-1][1] if curve else np.inf)


def loss_of(file: Path) -> float:
    """Return the mean loss over all frames at the weights in a file."""
    return loss_and_accuracy(SHAPE, np.load(file).astype(np.float32), frames())[0]


def crossing(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return when the loss first was at the target, between two looks in proportion."""
    for (before, above), (after, loss) in pairwise([(0.0, np.inf), *curve]):
        if loss <= target:
            return after if above == np.inf else before + (after - before) * (above - target) / (above - loss)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.targets", description=__doc__)
    parser.add_argument("--target", type=float, default=2.2, metavar="NATS", help="default: 2.2")
    parser.add_argument(
        "--pace", type=float, default=0.5e-3, metavar="S", help="seconds for a frame; default: 0.0005"
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--ways", nargs="+", type=Way, choices=list(Way), default=list(Way))
    parser.add_argument(
        "--limit", type=float, default=900.0, metavar="S", help="for a run of one node; default: 900"
    )
    parser.add_argument(
        "--spare", type=float, default=60.0, metavar="S", help="beyond a share of that; default: 60"
    )
    arguments = parser.parse_args()
    print("| way | nodes | rate | seconds to the target | times one node |\n|---|---|---|---|---|")
    for way in arguments.ways:
        alone: float | None = None
        for nodes in arguments.nodes:
            tried = []
            for rate in RATES[way]:
                tried.append(reach(way, rate, nodes, arguments))
                words = f"{way}, {nodes} nodes, rate {rate:g}: {tried[-1].seconds} s, {tried[-1].loss:.4f}"
                print(words, file=sys.stderr, flush=True)
            best = min(tried, key=lambda each: each.seconds or np.inf)
            if best.seconds is None:
                print(f"| {way} | {nodes} | | > | |", flush=True)
                continue
            alone = alone or best.seconds * nodes
            rated = f"{best.rate:g}" if best.rate else ""
            speed = f"{alone / best.seconds:.2f}" if nodes > 1 else ""
            print(f"| {way} | {nodes} | {rated} | {best.seconds:.1f} | {speed} |", flush=True)


if __name__ == "__main__":
    main()
