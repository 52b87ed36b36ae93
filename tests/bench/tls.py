"""What TLS costs: CPU time of a real daemon for the same updates with and without it, and whether a run of
four nodes over 1 Gbit/s links is slower with it.

Both are taken in the same run, the rings in turns. That a core carries a quarter of the updates with TLS is
the target: for a daemon at 20,000 updates of 24 KB in a second that is 1 Gbit/s.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from tests.bench import Figure, checksum
from tests.bench.daemon import Rig, measure_receiving, measure_sending, random_words
from tests.bench.ring.contenders import p2psgd_ring
from tests.bench.ring.hosts import can_shape, shaped
from tests.certificates import Certificates
from tests.daemons import all_stopped

RATE: Final = "1gbit"
PLAINTEXT, TLS = "plaintext", "TLS"


def run(*, large: bool) -> list[Figure]:
    """Large: updates of 17,300 indices of 14.6 M weights, about 24 KB; a ring over 14.6 M float32, 58 MB."""
    figures = daemons(*((14_600_000, 17_300, 2000) if large else (20_000, 100, 40)))
    if not can_shape():
        return [*figures, Figure("shaped links", 0, "measured", "need root, ip and tc")]
    return figures + rings(*((4, 14_600_000, 7) if large else (3, 300_001, 2)))


def daemons(weights: int, count: int, updates: int) -> list[Figure]:
    """Receiving from one peer, and sending to one more."""
    figures, received, sent, results = [], {}, {}, set()
    for how in (PLAINTEXT, TLS):
        with tempfile.TemporaryDirectory() as folder, all_stopped([]) as running:
            rig = Rig(folder, weights, certificates=Certificates(Path(folder)) if how == TLS else None)
            running.append(rig.daemon)
            delta = np.zeros(weights, np.float32)
            delta[np.random.default_rng(7).choice(weights, count, replace=False)] = 1.5 * rig.link.quantum
            own = min(updates, 200)
            one, four = (measure_sending(rig, peers, delta, own) for peers in (1, 4))
            sent[how] = (four - one) / 3
            words = random_words(weights, count, 50) * (updates // 50 or 1)
            rate, received[how], _ = measure_receiving(rig, words)
            result = checksum(rig.daemon.replica()[1])
            results.add(result)
        figures += [
            Figure(f"{how}: received", rate, "updates/s", f"{count} indices each, from one peer; {result}"),
            Figure(f"{how}: CPU per received update", received[how] * 1e6, "us", ""),
            Figure(f"{how}: CPU per update to one more peer", sent[how] * 1e6, "us", ""),
        ]
    assert len(results) == 1, results
    ratio = received[PLAINTEXT] / max(received[TLS], 1e-9)
    return [*figures, Figure("TLS to plaintext, received per core", ratio, "times", "target 0.25")]


def rings(count: int, size: int, rounds: int) -> list[Figure]:
    """A dense ring's rounds over links of 1 Gbit/s."""
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(shaped(count, rate=RATE))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificates = {PLAINTEXT: None, TLS: Certificates(directory)}
        ways = {
            how: stack.enter_context(p2psgd_ring(hosts, size, directory / how, certificates=held))[0]
            for how, held in certificates.items()
        }
        seconds: dict[str, list[float]] = {how: [] for how in ways}
        sums = set()
        for number in range(rounds + 1):  # the first warms up
            for how, contender in ways.items():
                taken, result = contender.round("allreduce")
                sums.add(result)
                if number:
                    seconds[how].append(taken)
        assert len(sums) == 1, f"different sums: {sums}"
    note = f"{count} nodes, {4 * size} bytes, median of {rounds} rounds; result {sums.pop()}"
    medians = {how: statistics.median(each) for how, each in seconds.items()}
    return [
        *(Figure(f"1 Gbit/s: allreduce, {how}", 1e3 * each, "ms", note) for how, each in medians.items()),
        Figure("1 Gbit/s: TLS to plaintext", medians[PLAINTEXT] / medians[TLS], "of the rate", "target 1"),
    ]
