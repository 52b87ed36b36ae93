"""A real daemon under load: what an update costs it to receive, and to send to one more peer.

Its CPU time comes from the kernel, so that what else runs on the machine counts little. Beside it, in the
same run, stands what decoding, checking and applying the same updates costs without any daemon: the part
that no network code can save.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import p2psgd
from benchmarks import Figure, checksum
from p2psgd.core.events import FrameReceived, LinkOpened, UpdateBody
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.run_spec import RunSpec, hash_coordinates
from p2psgd.wire.frames import PREFIX
from tests.certificates import Certificates
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports
from tests.stranger import Stranger

FAILURE_TIMEOUT_S = (
    10  # a node alone founds its run after one; strangers, who say nothing, are dropped after four
)


def random_words(weights: int, count: int, sets: int) -> list[NDArray[np.uint32]]:
    chance = np.random.default_rng(7)
    indices = (np.sort(chance.choice(weights, count, replace=False)) for _ in range(sets))
    return [(each << 1 | chance.integers(0, 2, count)).astype(np.uint32) for each in indices]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Rig:
    """A daemon without a trainer command, whose trainer is this process; with `certificates` over TLS."""

    def __init__(
        self,
        folder: str,
        weights: int,
        *,
        attach: Callable[..., Any] = p2psgd.attach,
        certificates: Certificates | None = None,
    ) -> None:
        (port,) = free_ports(1)
        hosts = Path(folder) / "hosts.txt"
        hosts.write_text(f"127.0.0.1:{port}\n")
        options = (
            "--peers",
            str(hosts),
            "--listen",
            f"127.0.0.1:{port}",
            "--failure-timeout",
            str(FAILURE_TIMEOUT_S),
        )
        self.port = port
        tls = () if certificates is None else certificates.options("node")
        self._certificates = certificates
        self.daemon = Daemon(Path(folder) / "node", *options, *tls)
        self.link = attach(np.zeros(weights, np.float32), control=Path(folder) / "node")

    def stranger(self, node: int) -> Stranger:
        """A linked peer."""
        held = self._certificates
        tls = None if held is None else held.client(f"stranger-{node}", node=node)
        return Stranger(self.daemon, self.port, node=node, tls=tls)

    def applied(self) -> int:
        status = self.daemon.status()
        return 0 if status is None else int(status["updates"]["applied"])


def measure_receiving(rig: Rig, sets: list[NDArray[np.uint32]]) -> tuple[float, float, float]:
    """Updates per second, CPU seconds per update, and CPU seconds per update of the core alone."""
    rig.link.close()
    stranger = rig.stranger(42)
    frames = stranger.updates(sets, origin=stranger.node)
    before, begin = cpu_seconds(rig.daemon.process.pid), time.perf_counter()
    stranger.drain()
    stranger.socket.sendall(b"".join(frames))
    until(lambda: rig.applied() >= len(frames), "all updates are applied")
    seconds = time.perf_counter() - begin
    spent = cpu_seconds(rig.daemon.process.pid) - before
    stranger.close()
    return len(frames) / seconds, spent / len(frames), measure_core(stranger, frames)


def measure_core(stranger: Stranger, frames: list[bytes]) -> float:
    coordinates = np.zeros(stranger.weights, np.int32)
    spec = RunSpec(
        (("weights", (stranger.weights,)),), -20, "async", "", hash_coordinates(coordinates), "stall"
    )
    assert spec.key == stranger.key
    replica = Replica(spec, me=Origin(1, 1), coordinates=coordinates)
    peer = Origin(stranger.node, 1)
    replica.handle(LinkOpened(peer, "stranger"), 0.0)
    begin = time.process_time()
    for frame in frames:
        replica.handle(FrameReceived(peer, UpdateBody(frame[PREFIX.size :])), 0.0)
    spent = time.process_time() - begin
    assert replica.tally.applied == len(frames)
    return spent / len(frames)


def measure_sending(rig: Rig, peers: int, delta: NDArray[np.float32], updates: int) -> float:
    """CPU seconds of the daemon per own update with so many linked peers."""
    strangers = [rig.stranger(100 + number) for number in range(peers)]
    for stranger in strangers:
        stranger.drain()
        stranger.want_everything()
    # What is in the log already must have reached the new peers before the clock starts.
    names = [f"stranger-{stranger.node}" for stranger in strangers]
    until(lambda: sent_to(rig, names) >= peers * own_bytes(rig), "the peers have the log")
    before = cpu_seconds(rig.daemon.process.pid)
    for _ in range(updates):
        rig.link.send(delta, threshold=1)
    target = rig.link.steps
    until(lambda: own_updates(rig) >= target, "all updates are taken")
    spent = cpu_seconds(rig.daemon.process.pid) - before
    for stranger in strangers:
        stranger.close()
    until(lambda: not rig.daemon.linked(), "the peers are gone")
    return spent / updates


def sent_to(rig: Rig, names: list[str]) -> int:
    status = rig.daemon.status() or {"peers": []}
    return sum(int(peer["bytes_sent"]) for peer in status["peers"] if peer["node"] in names)


def own_bytes(rig: Rig) -> int:
    status = rig.daemon.status()
    return 0 if status is None else int(status["updates"]["bytes"])


def own_updates(rig: Rig) -> int:
    status = rig.daemon.status()
    return 0 if status is None else int(status["updates"]["sent"])


def run(*, large: bool) -> list[Figure]:
    """Large: 14.6 M weights, updates of 17,300 indices, about 24 KB."""
    weights, count, updates = (14_600_000, 17_300, 2000) if large else (20_000, 100, 40)
    with tempfile.TemporaryDirectory() as folder, all_stopped([]) as daemons:
        rig = Rig(folder, weights)
        daemons.append(rig.daemon)
        delta = np.zeros(weights, np.float32)
        delta[np.random.default_rng(7).choice(weights, count, replace=False)] = 1.5 * rig.link.quantum
        own = min(updates, 200)  # twice that is less than a node makes without acknowledgements
        one, four = (measure_sending(rig, peers, delta, own) for peers in (1, 4))
        rate, spent, core = measure_receiving(rig, random_words(weights, count, 50) * (updates // 50 or 1))
        digest, replica = rig.daemon.replica()
    return [
        Figure("received", rate, "updates/s", f"{count} indices each, from one peer; target 20,000"),
        Figure("CPU per received update", spent * 1e6, "us", checksum(replica)),
        Figure("of which decode, check, apply", core * 1e6, "us", f"the core alone; digest {digest:016x}"),
        Figure("CPU of network and shell to the core's", spent / core - 1, "times", "what could be saved"),
        Figure("CPU per own update to one more peer", (four - one) / 3 * 1e6, "us", "target 15"),
    ]
