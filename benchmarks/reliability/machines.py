"""The machines of an experiment: hosts of a LAN, each with a daemon that nobody starts again by itself."""

from __future__ import annotations

import contextlib
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.reliability.notes import Notes, parse_notes
from benchmarks.reliability.probed_node import VARIABLE
from p2psgd.cli.local.cluster import MARK, kill_marked, mark_of
from p2psgd.storage.event_log import EVENTS_NAME, parse_event
from tests.daemons import P2PSGD, Daemon, until
from tests.lan import Lan

PORT: Final = 7315
PROBED: Final = [sys.executable, "-m", "benchmarks.reliability.probed_node"]


class Machine:
    """Machine `number`; `daemon` is the last that was started on it."""

    def __init__(
        self, number: int, *, directory: Path, run: str, within: Sequence[str], options: Sequence[str]
    ) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.state = directory / self.name
        self.notes_path = directory / f"{self.name}.notes"
        self.probe_path = directory / f"{self.name}.probe"
        self.started = 0.0  # Unix time, when its process was
        self._directory = directory
        self._mark = mark_of(run, self.name)
        # Should this process be killed, the daemons end by themselves, and their trainers with them.
        self._within = ["setpriv", "--pdeathsig", "TERM", *within]
        self._options = options
        self._lives = 0
        self._daemon: Daemon | None = None

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    def start(self, *, probed: bool = False) -> None:
        """Begin a life."""
        self._lives += 1
        self.started = time.time()
        self._daemon = Daemon(
            self.state,
            *self._options,
            within=self._within,
            log=self._directory / f"{self.name}.{self._lives}.log",
            environment={MARK: self._mark, VARIABLE: str(self.probe_path)},
            program=PROBED if probed else P2PSGD,
        )

    def kill(self) -> None:
        """kill -9 of all of it, as a service manager kills a whole unit."""
        if self._daemon is not None:
            self._daemon.process.kill()
        kill_marked(self._mark)
        if self._daemon is not None:
            self._daemon.process.wait(30)

    def status(self) -> dict[str, Any]:
        return self.daemon.status() or {}

    def ready(self) -> bool:
        return bool(self.status().get("ready"))

    def notes(self) -> Notes:
        return parse_notes(self.notes_path)

    def events(self, kind: str | None = None, *, since: float) -> list[dict[str, Any]]:
        """Its events of that kind, or all, from that Unix time on, with `at`: their own."""
        path = self.state / EVENTS_NAME
        lines = path.read_bytes().splitlines() if path.exists() else []
        events = [{**event, "at": _at(event)} for event in map(parse_event, lines) if event is not None]
        return [event for event in events if kind in (None, event["kind"]) and event["at"] >= since]

    def timeline(self, since: float) -> list[str]:
        """Return all events of this node as text, each with its seconds since then."""
        return [
            f"{event['at'] - since:.1f} s {event['kind']}: {event['words']}"
            for event in self.events(since=since)
        ]

    def first(self, kind: str, *, since: float, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for an event; returns it."""
        words = f"an event {kind} of {self.name}"
        found: list[dict[str, Any]] = until(
            lambda: self.events(kind, since=since), words, timeout_s=timeout_s
        )
        return found[0]

    def rss_kib(self) -> int:
        text = Path(f"/proc/{self.pid()}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def pid(self) -> int:
        """Return the daemon's process id: the wrapper in its command line has become the daemon."""
        return self.daemon.process.pid


def _has_sent(machine: Machine) -> bool:
    return bool(machine.notes().sent)


def _at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


@contextlib.contextmanager
def machines(
    count: int,
    *,
    directory: Path,
    options: Sequence[str],
    trainer: Callable[[Path], str],
    rate: str = "100mbit",
    burst: str = "64kb",
) -> Iterator[tuple[Lan, list[Machine]]]:
    """So many machines, none started; `trainer` makes the command from the path for its notes."""
    directory.mkdir(parents=True)
    run = secrets.token_hex(16)
    with Lan(count, rate=rate, burst=burst) as lan:
        made: list[Machine] = []
        try:
            for number, address in enumerate(lan.addresses):
                hosts = directory / f"node-{number}.hosts.txt"
                others = [f"{other}\n" for other in lan.addresses if other != address]
                hosts.write_text(f"{address}  # this node\n{''.join(others)}")
                notes = directory / f"node-{number}.notes"
                listen = ("--listen", f"0.0.0.0:{PORT}", "--insecure-plaintext")
                own = ("--peers", str(hosts), *listen, "--trainer", trainer(notes))
                machine = Machine(
                    number, directory=directory, run=run, within=lan.within(number), options=(*own, *options)
                )
                made.append(machine)
            yield lan, made
        finally:
            for machine in made:
                machine.kill()


def paced(rate: float, *size: int) -> Callable[[Path], str]:
    """The command of trainer.py: mini-batches a second, and weights and indices, if it is not a real net."""
    sizes = " ".join(map(str, size))
    return lambda notes: f"{sys.executable} -m benchmarks.reliability.trainer {notes} {rate} {sizes}".strip()


def start_all(chosen: Sequence[Machine], *, probed: bool = False, timeout_s: float = 120.0) -> None:
    """Start them, and wait until all train."""
    for machine in chosen:
        machine.start(probed=probed)
    for machine in chosen:
        until(partial(_has_sent, machine), f"{machine.name} trains", timeout_s=timeout_s)
