"""Runs a case: daemons with paced trainers on hosts of their own, and what they do in some seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.daemon import cpu_seconds
from benchmarks.reliability.machines import Machine, machines
from benchmarks.scaling import FAILURE_TIMEOUT_S, Case
from benchmarks.scaling.model import Way
from benchmarks.scaling.trainer import write_deltas
from tests.daemons import until
from tests.lan import Lan

WAYS: Final = {
    Way.ASYNC: "async",
    Way.OWNERS: "owners",
    Way.ROUNDS: "owners-rounds",
    Way.SPARSE_RING: "sparse",
    Way.DENSE_RING: "dense",
}
BURST_KB_MIN, BURST_KB_MAX = 16, 256  # see benchmarks/ring/hosts.py
SETTLING_S: Final = 5.0
LAST_BYTES: Final = 400  # of the notes of a trainer, several lines
START_S: Final = 900.0  # up to 128 interpreters start at once, on few processors that may be busy


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a trainer's notes, see trainer.py."""

    at: float
    steps: int
    received: int
    peers: int
    cpu_s: float
    receiving_s: float
    sending_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Means over the nodes of one case. `steps_per_s`: of all nodes, as far as they have reached their peers.
    `link_bytes`: what left a host for each step, headers of packets included. Seconds are of one step.
    """

    steps_per_s: float
    step_s: float
    link_bytes: float
    daemon_cpu_s: float
    trainer_cpu_s: float
    receiving_s: float
    sending_s: float
    busy: float  # part of this machine's processors
    slowest_to_fastest: float  # of the nodes' steps


def measure(case: Case, directory: Path, seconds: float) -> Measured:
    """Start all, let them settle, and look at what they do in so many seconds."""
    directory.mkdir(parents=True)
    deltas = directory / "deltas"
    write_deltas(deltas, case.weights, case.density)
    # No log on the one disk that all of them would share here.
    options = ("--failure-timeout", f"{FAILURE_TIMEOUT_S:g}", "--log-disk-budget", "0")

    def trainer(notes: Path) -> str:
        sizes = f"{case.computing_s} {case.weights} {deltas}"
        return f"{sys.executable} -m benchmarks.scaling.trainer {notes} {WAYS[case.way]} {sizes}"

    rate = f"{round(1000 * case.link_mbit)}kbit"
    burst = f"{min(BURST_KB_MAX, max(BURST_KB_MIN, round(12 * case.link_mbit)))}kb"  # what 0.1 s carries
    with machines(
        case.nodes, directory=directory / "nodes", options=options, trainer=trainer, rate=rate, burst=burst
    ) as (lan, all_machines):
        for machine in all_machines:
            machine.start()
        until(lambda: _together(all_machines), "all nodes hear of all", timeout_s=START_S)
        time.sleep(SETTLING_S)
        sent, spent = _sent_bytes(lan, case.nodes), _daemons_cpu_s(all_machines)
        begin, idle = time.monotonic(), _idle_s()
        time.sleep(seconds)
        end, idle = time.monotonic(), _idle_s() - idle
        spent, sent = _daemons_cpu_s(all_machines) - spent, _sent_bytes(lan, case.nodes) - sent
        windows = [_window(machine.notes_path, begin, end) for machine in all_machines]
    return _summary(
        case, windows, sent=sent, daemons_cpu_s=spent, busy=1 - idle / (end - begin), seconds=end - begin
    )


def _summary(
    case: Case,
    windows: Sequence[tuple[Line, Line]],
    *,
    sent: int,
    daemons_cpu_s: float,
    busy: float,
    seconds: float,
) -> Measured:
    rates = [(last.steps - first.steps) / (last.at - first.at) for first, last in windows]
    arriving = [(last.received - first.received) / (last.at - first.at) for first, last in windows]
    peers = case.nodes - 1
    # Where links are too narrow updates pile up on the way: what counts is what arrives.
    # In mode owners a trainer waits for covers, and in a dense ring for all.
    waits = case.way in (Way.OWNERS, Way.ROUNDS, Way.DENSE_RING)
    made = sum(rates) if not peers or waits else min(sum(rates), sum(arriving) / peers)
    steps = made * seconds  # of all nodes in the window
    own = sum(last.steps - first.steps for first, last in windows)
    return Measured(
        steps_per_s=made,
        step_s=case.nodes / made,
        link_bytes=sent / steps,
        daemon_cpu_s=daemons_cpu_s / steps,
        trainer_cpu_s=sum(last.cpu_s - first.cpu_s for first, last in windows) / own,
        receiving_s=sum(last.receiving_s - first.receiving_s for first, last in windows) / own,
        sending_s=sum(last.sending_s - first.sending_s for first, last in windows) / own,
        busy=busy,
        slowest_to_fastest=min(rates) / max(rates),
    )


def _together(all_machines: Sequence[Machine]) -> bool:
    """Each has a step with news of every other before it."""
    peers = len(all_machines) - 1
    lines = [_lines(machine.notes_path, last_bytes=LAST_BYTES)[-1:] for machine in all_machines]
    ended = [machine.name for machine in all_machines if machine.daemon.process.poll() is not None]
    assert not ended, f"{', '.join(ended)} ended"
    return all(each and each[0].peers == peers for each in lines)


def _lines(path: Path, *, last_bytes: int | None = None) -> list[Line]:
    """All whole lines, or those in the last bytes of the file."""
    if not path.exists():
        return []
    begin = 0 if last_bytes is None else max(0, path.stat().st_size - last_bytes)
    with open(path, encoding="ascii") as notes:
        notes.seek(begin)
        lines = notes.read().split("\n")[:-1]
    found = [line.split() for line in lines[1 if begin else 0 :]]
    return [Line(float(each[0]), *map(int, each[1:4]), *map(float, each[4:7])) for each in found]


def _window(path: Path, begin: float, end: float) -> tuple[Line, Line]:
    """The first and the last step within it."""
    inside = [line for line in _lines(path) if begin <= line.at <= end]
    assert len(inside) >= 3, (
        f"{path.name}: {len(inside)} steps in {end - begin:.0f} s are too few to tell a rate"
    )
    return inside[0], inside[-1]


def _sent_bytes(lan: Lan, nodes: int) -> int:
    """By all hosts so far, with the headers of all packets, as their shapers count them."""
    return sum(_sent_by(lan.within(number)) for number in range(nodes))


def _sent_by(within: list[str]) -> int:
    shaper = [*within, "tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]
    done = subprocess.run(shaper, capture_output=True, check=True)
    return int(json.loads(done.stdout)[0]["bytes"])


def _daemons_cpu_s(all_machines: Sequence[Machine]) -> float:
    return sum(cpu_seconds(machine.pid()) for machine in all_machines)


def _idle_s() -> float:
    """Return the mean idle seconds of this machine's processors so far."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    ticks = int(fields[4]) + int(fields[5])  # idle, and idle while a disk works
    return ticks / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
