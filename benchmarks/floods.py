"""Measure what a thousand strangers cost a linked peer: how many updates a real daemon takes from it in a
second with nobody else at the door, and while a thousand connections are held that stay silent or stall in
their greeting or handshake, each of which comes again some time after it was sent away.

By turns, in the same run. The strangers are a process of their own; sender, strangers and daemon share the
machine's cores, so that two are too few for a ratio that blames the daemon alone: its CPU time per update
stands beside.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import Figure, checksum
from benchmarks.daemon import Rig, cpu_seconds, random_words
from p2psgd.wire.frames import PREFIX, FrameType
from tests.certificates import Certificates, careless
from tests.daemons import all_stopped
from tests.stranger import Stranger

AGAIN_S: Final = 10.0  # as long as a daemon lets a greeting take
HALF_A_GREETING: Final = PREFIX.pack(100, FrameType.HELLO) + bytes(40)


def run(*, large: bool) -> list[Figure]:
    """Large: turns of 20,000 updates of 100 indices of a million weights, and a thousand strangers."""
    size = (1_000_000, 20_000, 7, 1000) if large else (20_000, 50, 1, 20)
    return [figure for encrypted in (False, True) for figure in measure(*size, encrypted=encrypted)]


def measure(weights: int, updates: int, turns: int, strangers: int, *, encrypted: bool) -> list[Figure]:
    openings = {"silent": b"", "stalled": half_a_hello() if encrypted else HALF_A_GREETING}
    how = "TLS" if encrypted else "plaintext"
    with tempfile.TemporaryDirectory() as folder, all_stopped([]) as running:
        rig = Rig(folder, weights, certificates=Certificates(Path(folder)) if encrypted else None)
        running.append(rig.daemon)
        rig.link.close()
        peer = rig.stranger(42)
        peer.drain()
        sets = random_words(weights, 100, 50)
        count = updates * (1 + 2 * turns * len(openings))
        frames = peer.updates([sets[number % 50] for number in range(count)], origin=peer.node)
        blocks = iter(b"".join(frames[first : first + updates]) for first in range(0, count, updates))
        send(rig, peer, next(blocks), updates)  # not counted
        figures = []
        for name, opening in openings.items():
            alone, flooded = [], []
            for _ in range(turns):
                alone.append(send(rig, peer, next(blocks), updates))
                with crowd(rig.port, strangers, opening):
                    flooded.append(send(rig, peer, next(blocks), updates))
            rates, costs = ([[each[place] for each in way] for way in (alone, flooded)] for place in (0, 1))
            rate = [statistics.median(way) for way in rates]
            cost = [statistics.median(way) for way in costs]
            note = f"{strangers} connections; {rate[0]:,.0f} updates/s alone, median of {turns}"
            figures += [
                Figure(f"{how}, {name}: rate of a linked peer", rate[1] / rate[0], "of that alone", note),
                Figure(
                    f"{how}, {name}: CPU per update",
                    cost[1] / max(cost[0], 1e-9),
                    "of that alone",
                    "strangers' included",
                ),
            ]
        assert rig.daemon.linked() == {f"stranger-{peer.node}"}  # it has stayed
        result = checksum(rig.daemon.replica()[1])
        peer.close()
    return [*figures, Figure(f"{how}: updates applied", count, "updates", result)]


def send(rig: Rig, peer: Stranger, block: bytes, updates: int) -> tuple[float, float]:
    """Updates per second, and CPU seconds of the daemon for each."""
    wanted = rig.applied() + updates
    before, begun = cpu_seconds(rig.daemon.process.pid), time.perf_counter()
    peer.socket.sendall(block)
    while rig.applied() < wanted:
        time.sleep(0.02)
        assert time.perf_counter() < begun + 120, "all updates are applied"
    seconds = time.perf_counter() - begun
    return updates / seconds, (cpu_seconds(rig.daemon.process.pid) - before) / updates


def half_a_hello() -> bytes:
    """Return the first half of a client's handshake."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        careless(None).wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()[:100]


@contextlib.contextmanager
def crowd(port: int, count: int, opening: bytes) -> Iterator[None]:
    """So many strangers at the port, from when the first connections of all have been made."""
    command = [sys.executable, "-m", "benchmarks.floods", str(port), str(count), opening.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as strangers:
        assert strangers.stdout is not None
        try:
            assert strangers.stdout.readline() == "all are there\n"
            yield
        finally:
            strangers.kill()


async def stay(port: int, opening: bytes, met: asyncio.Event) -> None:
    """Be one stranger until killed."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(opening)
            met.set()
            await reader.read()
            writer.close()
        await asyncio.sleep(AGAIN_S)


async def be_strangers(port: int, count: int, opening: bytes) -> None:
    met = [asyncio.Event() for _ in range(count)]
    everyone = [asyncio.create_task(stay(port, opening, each)) for each in met]
    for each in met:
        await each.wait()
    print("all are there", flush=True)
    await asyncio.gather(*everyone)


if __name__ == "__main__":
    asyncio.run(be_strangers(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])))
