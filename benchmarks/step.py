"""Measure what a training step pays for being one of four nodes: receive three peers' updates, then send its
own.

A real daemon, a real link; one hand-made peer passes on the updates of three origins. The delta is noise of
which about 1/850 crosses the threshold in each step, as in training. Compared with numpy's in-place add of
the same arrays in the same run, and with a step of 100 ms.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import numpy as np

from benchmarks import Figure, checksum
from benchmarks.daemon import Rig, random_words
from benchmarks.residual import DEVIATION, THRESHOLD
from tests.daemons import all_stopped
from tests.stranger import Stranger

PEERS = 3


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, 17,300 indices in each update."""
    weights, count, steps = (14_600_000, 17_300, 60) if large else (50_000, 60, 6)
    chance = np.random.default_rng(3)
    # Differences of these, taken in turn, leave one of them in the residual: it neither grows nor dies out.
    noise = [chance.normal(0, DEVIATION * 2**0.5, weights).astype(np.float32) for _ in range(3)]
    deltas = [noise[turn] - noise[turn - 1] for turn in range(3)]
    with tempfile.TemporaryDirectory() as folder, all_stopped([]) as daemons:
        rig = Rig(folder, weights)
        daemons.append(rig.daemon)
        stranger = Stranger(rig.daemon, rig.port)
        stranger.drain()
        sets = random_words(weights, count, 10) * (steps // 10 or 1)
        trains = [stranger.updates(sets[:steps], origin=50 + number) for number in range(PEERS)]
        total = np.zeros(weights, np.float32)
        seconds: dict[str, list[float]] = {"receive": [], "send": [], "add": []}
        sent = 0
        for turn, frames in enumerate(zip(*trains, strict=True)):
            delta = deltas[turn % 3]
            stranger.socket.sendall(b"".join(frames))
            received = 0
            while received < PEERS:  # only the call that finds something is counted, as in a step of 100 ms
                rig.link.wait(1.0)
                begin = time.perf_counter()
                received += (got := rig.link.receive())
                if got:
                    seconds["receive"].append((time.perf_counter() - begin) / got * PEERS)
            begin = time.perf_counter()
            sent += rig.link.send(delta, threshold=round(THRESHOLD / rig.link.quantum))
            seconds["send"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            np.add(total, delta, out=total)
            seconds["add"].append(time.perf_counter() - begin)
        result = checksum(rig.link.weights.tobytes())
        rig.link.close()
        stranger.close()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    added = medians["receive"] + medians["send"]
    ratio = added / medians["add"]
    return [
        Figure("receive, 3 updates", medians["receive"] * 1e3, "ms", f"{count} indices each; {result}"),
        Figure("send", medians["send"] * 1e3, "ms", f"{sent // len(seconds['send'])} indices each"),
        Figure("added to a step", added * 1e3, "ms", f"{added * 1e3:.0f} % of 100 ms; target 15"),
        Figure("added, to in-place add's", ratio, "times", f"add {medians['add'] * 1e3:.3g} ms"),
    ]
