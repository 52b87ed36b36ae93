"""Measure what TLS costs: CPU time of a real daemon for the same updates with and without it, and whether a
run of four nodes over 1 Gbit/s links is slower with it.

Both are taken in the same run, the rings in turns. That a core carries a quarter of the updates with TLS is
the target: for a daemon at 20,000 updates of 24 KB in a second that is 1 Gbit/s.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import Figure, checksum
from benchmarks.daemon import Rig, cpu_seconds, measure_receiving, measure_sending, random_words
from benchmarks.ring.contenders import p2psgd_ring
from benchmarks.ring.hosts import BURST, can_shape, shaped
from tests.certificates import Certificates
from tests.daemons import Daemon, all_stopped, assert_replicas_identical, trainer, until
from tests.lan import Lan

RATE: Final = "1gbit"
BYTES_PER_S: Final = 125e6
PLAINTEXT, TLS = "plaintext", "TLS"


def run(*, large: bool) -> list[Figure]:
    """Large: updates of 17,300 indices of 14.6 M weights, about 24 KB; a ring over 14.6 M float32, 58 MB."""
    figures = daemons(*((14_600_000, 17_300, 2000) if large else (20_000, 100, 40)))
    if not can_shape():
        return [*figures, Figure("shaped links", 0, "measured", "need root, ip and tc")]
    figures += runs(*((4, 2000, 3) if large else (2, 20, 1)))
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
    """A dense ring's rounds over links of 1 Gbit/s, which they fill. The hosts share this machine's cores, so
    the CPU time of a daemon says more than the time of a round: while it is below the link's own time, a host
    with a core to spare is not slowed.
    """
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(shaped(count, rate=RATE))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificates = {PLAINTEXT: None, TLS: Certificates(directory)}
        ways = {
            how: stack.enter_context(p2psgd_ring(hosts, size, directory / how, certificates=held))
            for how, held in certificates.items()
        }
        seconds: dict[str, list[float]] = {how: [] for how in ways}
        spent: dict[str, list[float]] = {how: [] for how in ways}
        sums = set()
        for number in range(rounds + 1):  # the first warms up
            for how, (contender, running) in ways.items():
                before = cpu_of(running)
                taken, result = contender.round("allreduce")
                sums.add(result)
                if number:
                    seconds[how].append(taken)
                    spent[how].append((cpu_of(running) - before) / count)
        assert len(sums) == 1, f"different sums: {sums}"
    note = f"{count} nodes, {4 * size} bytes, median of {rounds} rounds; result {sums.pop()}"
    limit_s = 4 * size * 2 * (count - 1) / count / BYTES_PER_S
    medians = {how: statistics.median(each) for how, each in seconds.items()}
    return [
        Figure("1 Gbit/s: allreduce, the link's limit", 1e3 * limit_s, "ms", "2 (N - 1) / N of the bytes"),
        *(Figure(f"1 Gbit/s: allreduce, {how}", 1e3 * each, "ms", note) for how, each in medians.items()),
        *(
            Figure(f"1 Gbit/s: CPU of a daemon for it, {how}", 1e3 * statistics.fmean(each), "ms", "mean")
            for how, each in spent.items()
        ),
    ]


def cpu_of(running: list[Daemon]) -> float:
    """Seconds of all daemons so far."""
    return sum(cpu_seconds(daemon.process.pid) for daemon in running)


def runs(count: int, steps: int, turns: int) -> list[Figure]:
    """The recipe `digits` on so many nodes over links of 1 Gbit/s, from when all are linked to the last one's
    end.
    """
    seconds: dict[str, list[float]] = {PLAINTEXT: [], TLS: []}
    for turn in range(turns):
        for how, each in seconds.items():
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / f"{turn}"
                each.append(run_once(place, count, steps, Certificates(place) if how == TLS else None))
    note = f"{count} nodes, {steps} mini-batches each, best of {turns}"
    best = {how: min(each) for how, each in seconds.items()}
    return [
        *(Figure(f"1 Gbit/s: a run, {how}", each, "s", note) for how, each in best.items()),
        Figure("1 Gbit/s: a run, TLS to plaintext", best[PLAINTEXT] / best[TLS], "of the rate", "target 1"),
    ]


def run_once(place: Path, count: int, steps: int, certificates: Certificates | None) -> float:
    place.mkdir(exist_ok=True)
    with Lan(count, rate=RATE, burst=BURST) as lan, all_stopped([]) as running:
        hosts = place / "hosts.txt"
        hosts.write_text("".join(f"{address}\n" for address in lan.addresses))
        for number in range(count):
            name = f"node-{number}"
            tls = ("--insecure-plaintext",) if certificates is None else certificates.options(name)
            options = ("--peers", str(hosts), "--trainer", trainer("digits", "--steps", str(steps)), *tls)
            running.append(Daemon(place / name, *options, within=lan.within(number)))
        until(lambda: all(len(each.linked()) == count - 1 for each in running), "linked", timeout_s=120)
        begun = time.perf_counter()
        until(lambda: all(each.finished() for each in running), "finished", timeout_s=300)
        seconds = time.perf_counter() - begun
        assert_replicas_identical(running)
        return seconds
