"""Measure what a training step on the device pays for being one of four nodes: receive three updates, send
one.

A real daemon, a real link, as in the bench `step` of the CPU; steps with and without the link are taken in
turns. The delta is noise of which about 1/850 crosses the threshold, so that as much is sent as in training.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import Figure, best_seconds, checksum
from benchmarks.daemon import Rig, random_words
from benchmarks.residual import DEVIATION, THRESHOLD
from p2psgd.recipes.model import Activation, Net, Shape, initial_weights
from tests.daemons import all_stopped
from tests.gpu.backends import Backend
from tests.stranger import Stranger

PEERS = 3
LARGE = Shape(440, (2000, 2000, 2000, 2000), 860, Activation.SIGMOID)  # 14.6 M weights
SMALL = Shape(40, (100,), 10, Activation.SIGMOID)


def run(gpu: Backend, *, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, batches of 1,024, 17,300 indices in each update."""
    shape, rows, steps = (LARGE, 1024, 60) if large else (SMALL, 8, 6)
    weights, count = shape.weights, max(1, shape.weights // 844)
    chance = np.random.default_rng(3)
    # Differences of these, taken in turn, leave one of them in the residual: it neither grows nor dies out.
    noise = [chance.normal(0, DEVIATION * 2**0.5, weights).astype(np.float32) for _ in range(3)]
    deltas = [gpu.cupy.asarray(noise[turn] - noise[turn - 1]) for turn in range(3)]
    gradient = make_gradient(gpu, shape, rows, chance)
    attach = importlib.import_module("p2psgd.gpu").attach  # that of the backend in use
    with tempfile.TemporaryDirectory() as folder, all_stopped([]) as daemons:
        rig = Rig(folder, weights, attach=attach)
        daemons.append(rig.daemon)
        stranger = Stranger(rig.daemon, rig.port)
        stranger.drain()
        sets = random_words(weights, count, 10) * (steps // 10 or 1)
        trains = [stranger.updates(sets[:steps], origin=50 + number) for number in range(PEERS)]
        seconds: dict[str, list[float]] = {"alone": [], "linked": []}
        sent = received = 0
        for turn, frames in enumerate(zip(*trains, strict=True)):
            begin = time.perf_counter()
            gradient()
            seconds["alone"].append(time.perf_counter() - begin)
            stranger.socket.sendall(b"".join(frames))
            rig.link.wait(1.0)
            begin = time.perf_counter()
            received += rig.link.receive()
            gradient()
            sent += rig.link.send(deltas[turn % 3], threshold=round(THRESHOLD / rig.link.quantum))
            gpu.cupy.cuda.Device().synchronize()
            seconds["linked"].append(time.perf_counter() - begin)
        result = checksum(rig.link.weights.get().tobytes())
        copies = copies_of_residual(gpu, rig.link)
        rig.link.close()
        stranger.close()
    alone, linked = (statistics.median(seconds[name]) * 1e3 for name in ("alone", "linked"))
    taken = len(seconds["linked"])
    note = f"{sent // taken} indices sent and {received / taken:.1f} updates received in each; {result}"
    return [
        Figure("gradient of a mini-batch", alone, "ms", f"{weights} weights, {rows} samples"),
        Figure("the same with receive and send", linked, "ms", note),
        Figure("added to a step", 100 * (linked / alone - 1), "%", "target 5"),
        *copies,
    ]


def copies_of_residual(gpu: Backend, link: Any) -> list[Figure]:
    """Measure a copy of the residual that outlives a crash, beside one to page-locked memory."""
    residual = link.residual
    pinned = np.frombuffer(gpu.cupy.cuda.alloc_pinned_memory(residual.nbytes), np.float32, residual.size)
    copies = {"kept": link._compute.keep_residual, "page-locked": lambda: residual.get(out=pinned)}
    best = best_seconds(copies, rounds=5)
    return [
        Figure(
            "copy of the residual for the next trainer", best["kept"] * 1e3, "ms", "every 60 s by default"
        ),
        Figure("the same to page-locked memory", best["page-locked"] * 1e3, "ms"),
    ]


def make_gradient(gpu: Backend, shape: Shape, rows: int, chance: np.random.Generator) -> Callable[[], float]:
    """Makes the gradient of one mini-batch again and again; waits for it."""
    cupy: Any = gpu.cupy
    net = Net(shape, rows, cupy)
    flat = np.concatenate([tensor.ravel() for tensor in initial_weights(shape, 1).values()])
    weights, gradient = cupy.asarray(flat), cupy.empty(shape.weights, np.float32)
    inputs = cupy.asarray(chance.normal(0, 1, (rows, shape.inputs)).astype(np.float32))
    labels = cupy.asarray(chance.integers(0, shape.classes, rows).astype(np.int32))

    def make() -> float:
        loss = net.gradient(weights, inputs, labels, gradient=gradient)
        cupy.cuda.Device().synchronize()
        return loss

    return make
