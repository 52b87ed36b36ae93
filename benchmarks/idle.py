"""Many daemons on one machine that have nothing to do: the memory that is each one's own, and its CPU.

First none has a trainer, so that none knows its run. Then each has one that has attached and computes
nothing: all are linked to all, in one run of ten weights, and send each other signs of life, five in a
failure timeout. CPU time and memory come from the kernel, so that what else runs on the machine counts
little; for the times to start it counts.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import p2psgd
from benchmarks import Figure, checksum
from benchmarks.daemon import cpu_seconds
from p2psgd.client.link import Link
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports

START_S: Final = 300.0  # for all of them, on a machine with little else to do
FAILURE_TIMEOUT_S: Final = 20.0  # as between distant machines: with 5 s two cores are too few for 100 of them


@dataclass(frozen=True)
class Idleness:
    """The costs of idle daemons, one number for each."""

    own_bytes: list[int]
    core_shares: list[float]
    wakeups_per_s: list[float]

    def figures(self, when: str) -> list[Figure]:
        memory, share = max(self.own_bytes) / 1e6, 100 * max(self.core_shares)
        medians = [statistics.median(each) for each in (self.own_bytes, self.core_shares, self.wakeups_per_s)]
        return [
            Figure(
                f"own memory, {when}", memory, "MB", f"the largest; median {medians[0] / 1e6:.1f}; goal 60"
            ),
            Figure(f"of a core, {when}", share, "%", f"the largest; median {100 * medians[1]:.2f}; goal 0.5"),
            Figure(f"wake-ups, {when}", medians[2], "1/s", "median"),
        ]


def own_bytes(pid: int) -> int:
    """Return the memory of a process that it shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def wakeups(pid: int) -> int:
    """Return how often a process has waited for something so far, in its first thread."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))


def measure(daemons: list[Daemon], seconds: float) -> Idleness:
    pids = [daemon.process.pid for daemon in daemons]
    before = [(cpu_seconds(pid), wakeups(pid), time.monotonic()) for pid in pids]
    time.sleep(seconds)
    after = [(cpu_seconds(pid), wakeups(pid), time.monotonic()) for pid in pids]
    spans = [end[2] - begin[2] for begin, end in zip(before, after, strict=True)]
    rows = list(zip(before, after, spans, strict=True))
    return Idleness(
        [own_bytes(pid) for pid in pids],
        [(end[0] - begin[0]) / span for begin, end, span in rows],
        [(end[1] - begin[1]) / span for begin, end, span in rows],
    )


def members(daemon: Daemon) -> int:
    """Return the size of the view of a daemon that is ready, else 0."""
    status = daemon.status()
    return status["view"]["members_total"] if status is not None and status.get("ready") else 0


def run(*, large: bool) -> list[Figure]:
    """Large: 100 daemons, a minute each way."""
    count, seconds = (100, 60.0) if large else (3, 1.0)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as links:
        ports = free_ports(count)
        hosts = Path(folder) / "hosts.txt"
        hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
        daemons = links.enter_context(all_stopped([]))
        begin = time.monotonic()
        for number, port in enumerate(ports):
            place = ("--peers", str(hosts), "--listen", f"127.0.0.1:{port}")
            timeout = ("--failure-timeout", f"{FAILURE_TIMEOUT_S:g}")
            daemons.append(Daemon(Path(folder) / f"node-{number}", *place, *timeout))
        for daemon in daemons:
            until(daemon.status, "all answer", timeout_s=START_S)
        answered_s = time.monotonic() - begin
        alone = measure(daemons, seconds)

        def attach(daemon: Daemon) -> Link:
            return p2psgd.attach(np.zeros(10, np.float32), control=daemon.state)

        begin = time.monotonic()
        with ThreadPoolExecutor(count) as threads:
            for link in threads.map(attach, daemons):
                links.enter_context(contextlib.closing(link))
        until(lambda: all(members(each) == count for each in daemons), "all are members", timeout_s=START_S)
        ready_s = time.monotonic() - begin
        linked = measure(daemons, seconds)
        replica = daemons[-1].replica()[1]
    return [
        Figure("idle daemons", count, "processes", checksum(replica)),
        Figure("from the first start until all answer", answered_s, "s"),
        Figure("and from the first trainer until all are ready", ready_s, "s", "linked to all, in one view"),
        *alone.figures("no run"),
        *linked.figures("one run"),
    ]
