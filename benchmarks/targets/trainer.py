"""A paced training script: `python -m benchmarks.targets.trainer WAY RATE PACE_S FOLDER`.

RATE is a learning rate, and of no effect with L-BFGS; PACE_S the seconds that a frame takes to compute. Each
node writes to FOLDER that it is there, and begins when a file `begin` appears. The node n0 writes its
weights, `SECONDS.npy`, by the time since then: after each iteration of L-BFGS, else once a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import p2psgd
from benchmarks.targets import RECIPE, SHAPE, Way, frames
from p2psgd.base.errors import TrainerError
from p2psgd.client.link import Link
from p2psgd.recipes.datasets import Dataset
from p2psgd.recipes.full_batch import RecipeLoss
from p2psgd.recipes.gradients import HostFeed
from p2psgd.recipes.lbfgs import Lbfgs, Vector
from p2psgd.recipes.model import Net

BATCH: Final = 100
TAU: Final = 0.02  # the threshold of a gradient
SNAPSHOTS_S: Final = 1.0

Take = Callable[[NDArray[Any]], None]


class Snapshots:
    """Weights of one node over time, as files that are there as a whole or not at all."""

    def __init__(self, folder: Path, link: Link) -> None:
        self._folder = folder if link.node == "n0" else None
        self._begin = time.monotonic()
        self._last = 0.0

    def take(self, weights: NDArray[Any]) -> None:
        if self._folder is None:
            return
        self._last = time.monotonic() - self._begin
        new = self._folder / "new.npy"
        np.save(new, weights)
        new.rename(self._folder / f"{self._last:09.3f}.npy")

    def take_if_due(self, weights: NDArray[Any]) -> None:
        if time.monotonic() - self._begin >= self._last + SNAPSHOTS_S:
            self.take(weights)


def rest_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


class PacedLoss(RecipeLoss):
    """The loss of `p2psgd lbfgs`, whose portions take their time."""

    def __init__(self, link: Link, pace_s: float) -> None:
        super().__init__(RECIPE, Dataset(frames(), frames(), SHAPE.classes), SHAPE, link)
        self._pace_s = pace_s

    def part(self, point: Vector, samples: range) -> tuple[float, Vector]:
        end = time.monotonic() + self._pace_s * len(samples)
        result = super().part(point, samples)
        rest_until(end)
        return result


def run_lbfgs(link: Link, pace_s: float, take: Take) -> None:
    method = Lbfgs(PacedLoss(link, pace_s), np.zeros(SHAPE.weights))
    while not link.stopping:
        method.iterate()
        take(method.point)


def run_sgd(link: Link, pace_s: float, rate: float, take: Take) -> None:
    """Make mini-batches; with Adagrad, which the owners compute, of gradients, else of changes."""
    chance = np.random.default_rng(int(link.node[1:]))
    net: Any = Net(SHAPE, BATCH)
    feed, gradient = HostFeed(frames(), BATCH), np.empty(SHAPE.weights, np.float32)
    adagrad = link.mode.rule.gradients
    quanta = TAU / link.quantum
    while not link.stopping:
        link.receive()
        end = time.monotonic() + pace_s * BATCH
        at = link.weights if adagrad else link.weights + link.residual
        net.gradient(at, *feed.take(chance.integers(len(frames().labels), size=BATCH)), gradient=gradient)
        rest_until(end)
        if adagrad:
            link.send(gradient, round(quanta), rate=rate)
        else:
            link.send(-rate * gradient, round(rate * quanta))
        take(link.weights)


def main() -> None:
    way, rate, pace_s, folder = Way(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    mode, rule = {
        Way.LBFGS: ("closure", None),
        Way.DOWNPOUR: ("owners", "adagrad"),
        Way.ASYNC: ("async", None),
    }[way]
    initial = np.zeros(SHAPE.weights, np.float32)
    with p2psgd.attach(initial, label=way, mode=mode, rule=rule) as link:
        (folder / f"{link.node}.here").touch()
        while not (folder / "begin").exists() and not link.stopping:
            time.sleep(0.05)
        snapshots = Snapshots(folder, link)
        try:
            if way is Way.LBFGS:
                run_lbfgs(link, pace_s, snapshots.take)
            else:
                run_sgd(link, pace_s, rate, snapshots.take_if_due)
        except TrainerError:
            if not link.stopping:
                raise


if __name__ == "__main__":
    main()
