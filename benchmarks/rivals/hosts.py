"""The hosts of a run: each with a link that carries a rate, and perhaps has a delay, and a share of the
processors.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.ring.hosts import Host
from benchmarks.rivals.delay import DelayedLan
from benchmarks.rivals.processors import Processors, share
from tests.lan import Lan

UNSHAPED_MBIT: Final = 100_000
BURST_KB_MIN, BURST_KB_MAX = 16, 256  # see benchmarks/ring/hosts.py
ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(slots=True)
class Place:
    """A host, and what was started on it."""

    number: int
    lan_host: Host
    processors: Processors
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.lan_host.address

    @property
    def within(self) -> list[str]:
        """Return the prefix of a command that runs on this host. If this process is killed, the command dies
        too.
        """
        return ["setpriv", "--pdeathsig", "KILL", *self.processors.within, *self.lan_host.within]

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self.within, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **environment},
                start_new_session=True,
            )
        self.processes.append(process)

    def ended(self) -> bool:
        """Return whether one of the processes started on this host has ended."""
        return any(process.poll() is not None for process in self.processes)

    def kill(self) -> None:
        """Kill everything that runs on this host."""
        self.processors.kill()
        for process in self.processes:
            process.wait(30)


@contextlib.contextmanager
def places(count: int, *, mbit: int, delay_ms: int = 0) -> Iterator[list[Place]]:
    """So many hosts; 0 Mbit/s: their links are as fast as this machine. All that runs there ends with it."""
    rate = mbit or UNSHAPED_MBIT
    burst_kb = min(BURST_KB_MAX, max(BURST_KB_MIN, 12 * rate))  # what 0.1 s carries
    with contextlib.ExitStack() as stack:
        shape = {"rate": f"{rate}mbit", "burst": f"{burst_kb}kb"}
        lan = stack.enter_context(
            DelayedLan(count, delay_ms=delay_ms, **shape) if delay_ms else Lan(count, **shape)
        )
        made = []
        for number, address in enumerate(lan.addresses):
            processors = Processors(lan.hosts[number])
            stack.callback(processors.remove)
            made.append(Place(number, Host(address, "eth0", tuple(lan.within(number))), processors))
        yield made


def bytes_sent(all_places: Sequence[Place]) -> int:
    """By all of them, with the headers of all packets."""
    return sum(place.lan_host.bytes_sent() for place in all_places)


def share_processors(all_places: Sequence[Place], slow: Mapping[int, float]) -> None:
    """From now on each has its part, and some a part of that, by number."""
    for place in all_places:
        place.processors.limit(share(len(all_places)) * slow.get(place.number, 1.0))
