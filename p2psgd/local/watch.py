"""Who is alive and what they say: the one place where a node of a local run becomes a lost one.

Joins the processes (cluster.py) with their statuses (observer.py). A node that dies is lost and the others go
on; only a daemon that ends by itself before it ever trained stops the run, for then something is wrong with
how it was started.
"""

from __future__ import annotations

import time

from p2psgd.errors import ExitCode, UsageError
from p2psgd.local.cluster import Cluster, LocalDaemon
from p2psgd.local.convergence import Frontier, frontier_of
from p2psgd.local.display import Display
from p2psgd.local.observer import Observer
from p2psgd.ops.figures import LOST, Status, node_figures, section

TURN_S = 0.1  # how soon a dead daemon is noticed
LOOK_EVERY_S = 0.5  # how often the daemons are asked for their status


class Watch:
    """The nodes of a run, looked at again and again and shown on a display."""

    def __init__(self, cluster: Cluster, names: list[str], display: Display) -> None:
        self.lost: dict[str, str] = {}  # node -> what became of it
        self._cluster = cluster
        self._names = names
        self._display = display
        self._observer = Observer(names)
        self._next_look = 0.0

    @property
    def live(self) -> list[LocalDaemon]:
        """The daemons that are not lost."""
        return [daemon for daemon in self._cluster.daemons if daemon.name not in self.lost]

    @property
    def unfinished(self) -> list[LocalDaemon]:
        """The live daemons whose trainers have not finished."""
        return [
            daemon for daemon in self.live if not section(self._status(daemon), "trainer").get("finished")
        ]

    @property
    def run(self) -> Status:
        """What the live nodes say about their run; empty when none of them knows one."""
        return next((run for daemon in self.live if (run := section(self._status(daemon), "run"))), {})

    def statuses(self) -> list[Status]:
        """Return the latest status of every node, in order; of a lost one with what became of it."""
        statuses: list[Status] = []
        for name in self._names:
            status = self._observer.latest(name)
            why = self.lost.get(name)
            statuses.append(status if why is None else {**status, "state": f"{LOST} ({why})"})
        return statuses

    def speeds(self) -> dict[str, float | None]:
        """Return how many samples per second each node has trained."""
        return self._observer.speeds()

    def frontiers(self) -> dict[str, Frontier]:
        """Return what every live node has applied, as far as it was heard."""
        return {daemon.name: frontier_of(self._status(daemon)) for daemon in self.live}

    def all_answered_since(self, moment: float) -> bool:
        """Return whether the statuses of all live nodes are newer than `moment`."""
        return all(self._observer.has_answered_since(daemon.name, moment) for daemon in self.live)

    def turn(self, phase: str) -> bool:
        """Wait a moment, note who has died, ask for statuses if it is time for it; return whether it was."""
        time.sleep(TURN_S)
        self.note_the_dead(phase)
        looking = time.monotonic() >= self._next_look
        if looking:
            self._observer.look(self.live)
            self._next_look = time.monotonic() + LOOK_EVERY_S
        self._display.show(phase, self.statuses())
        return looking

    def note_the_dead(self, phase: str) -> None:
        """Make nodes whose daemon has ended lost ones; raises UsageError if one could not even start."""
        for daemon in self.live:
            code = daemon.exit_code
            if code is None:
                continue
            words = f": {daemon.last_words}" if code > 0 and daemon.last_words else ""
            if code >= 0 and not node_figures(self._status(daemon)).mini_batches:
                raise UsageError(f"{daemon.name} {daemon.ending} at the start{words}", _exit_code(code))
            self.lose(daemon, f"{daemon.ending}{words}", phase)

    def lose(self, daemon: LocalDaemon, why: str, phase: str) -> None:
        """Give a node up: it is shown as lost from now on, and nothing of it stays behind."""
        self.lost[daemon.name] = why
        self._cluster.discard(daemon)
        self._display.show(phase, self.statuses(), at_once=True)

    def _status(self, daemon: LocalDaemon) -> Status:
        return self._observer.latest(daemon.name)


def _exit_code(code: int) -> ExitCode:
    """Return the code as one of ours, never the one for success."""
    try:
        return ExitCode(code) or ExitCode.FAILED
    except ValueError:
        return ExitCode.FAILED
