"""Start what is compared: processes that begin together, one on each host, and sum their arrays in step."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from benchmarks.ring.hosts import Host
from p2psgd.storage.identity import lay_down_id
from tests.certificates import Certificates
from tests.daemons import Daemon, all_stopped
from tests.ports import free_ports

LEAD_S: Final = 0.05  # from telling all processes when to begin to that moment
FAILURE_TIMEOUT_S: Final = 10.0  # the hosts share a machine: nobody is late for that


class Contender:
    """Running processes of one kind, in the order of their hosts."""

    def __init__(self, name: str, commands: Sequence[Sequence[str]]) -> None:
        self.name = name
        self._processes = [
            subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for command in commands
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()

    def await_ready(self) -> None:
        for process in self._processes:
            words = _line(process.stdout)
            assert words == "ready", f"{self.name}: {words!r}"

    def round(self, *words: str) -> tuple[float, str]:
        """Seconds from the common beginning to the last one's end, and the checksum of what all have."""
        begin = time.monotonic() + LEAD_S
        ends = self._ask(f"{begin:.6f} {' '.join(words)}")
        sums = self._ask("go on")
        assert len(set(sums)) == 1, f"{self.name}: different results: {sums}"
        self.await_ready()
        return max(map(float, ends)) - begin, sums[0]

    def _ask(self, words: str) -> list[str]:
        """Say this to all, and hear what each answers."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{words}\n")
            process.stdin.flush()
        answers = [_line(process.stdout) for process in self._processes]
        assert all(answers), f"{self.name}: a process has ended"
        return answers


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def with_ports(hosts: Sequence[Host]) -> list[str]:
    """An address for each to listen on."""
    return [f"{host.address}:{port}" for host, port in zip(hosts, free_ports(len(hosts)), strict=True)]


@contextlib.contextmanager
def plain(module: str, hosts: Sequence[Host], count: int) -> Iterator[Contender]:
    """gloo or raw: processes that need nothing but each other's addresses."""
    addresses = with_ports(hosts)
    commands = [
        [
            *(*host.within, sys.executable, "-m", f"benchmarks.ring.{module}"),
            *(str(place), str(count), host.interface, *addresses),
        ]
        for place, host in enumerate(hosts)
    ]
    with Contender(module, commands) as contender:
        contender.await_ready()
        yield contender


@contextlib.contextmanager
def p2psgd_ring(
    hosts: Sequence[Host],
    count: int,
    directory: Path,
    *,
    tensors: int = 1,
    failure_timeout_s: float = FAILURE_TIMEOUT_S,
    certificates: Certificates | None = None,
) -> Iterator[tuple[Contender, list[Daemon]]]:
    """A daemon on each host, node ids in the order of the hosts, and a trainer for each. Without
    `certificates` in plaintext.
    """
    directory.mkdir()
    listed = with_ports(hosts)
    peers = directory / "hosts.txt"
    peers.write_text("".join(f"{each}\n" for each in listed))
    with all_stopped([]) as daemons:
        for number, (host, listen) in enumerate(zip(hosts, listed, strict=True)):
            options = (
                "--peers",
                str(peers),
                "--listen",
                listen,
                "--failure-timeout",
                f"{failure_timeout_s:g}",
            )
            state = directory / f"node-{number}"
            state.mkdir()
            lay_down_id(state, node=number + 1, name=state.name)
            tls: tuple[str, ...] = ("--insecure-plaintext",)
            if certificates is not None:
                tls = ("--tls", str(certificates.directory(state.name, node=number + 1)))
            daemons.append(Daemon(state, *options, *tls, within=list(host.within)))
        commands = [
            [
                *(*host.within, sys.executable, "-m", "benchmarks.ring.trainer", str(daemon.state)),
                *map(str, (place, len(hosts), count, tensors)),
            ]
            for place, (host, daemon) in enumerate(zip(hosts, daemons, strict=True))
        ]
        with Contender("p2psgd", commands) as contender:
            contender.await_ready()
            yield contender, daemons


def has_gloo() -> bool:
    """Return whether PyTorch is installed: the extra `test-torch`."""
    return importlib.util.find_spec("torch") is not None
