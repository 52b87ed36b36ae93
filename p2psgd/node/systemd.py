"""Reports to systemd from a daemon that it has started: that it is usable, what it waits for, that it makes
progress, and that it stops.

sd_notify(3) and sd_watchdog_enabled(3) without their library: datagrams of lines KEY=value to the socket that
$NOTIFY_SOCKET names. Nothing is sent without it, as when a person starts the daemon. What counts as progress
is decided where it is made, in daemon.py.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, MutableMapping
from typing import Final

from p2psgd.base.formatting import printable
from p2psgd.observe.status import NodeStatus, PeerState

BEATS: Final = 4  # in one time of the watchdog: some may come late, or find no room
STATUS_S: Final = 5.0  # between two sentences; each is made from a whole status, with all peers
SENTENCE_MAX: Final = 500  # letters of it; `systemctl status` shows one line

log = logging.getLogger("p2psgd.node")


class Notifier:
    """The socket of the service manager that has started this process."""

    def __init__(self, address: str) -> None:
        """Take `address`: a path, or @ and a name without a file; empty: there is no service manager."""
        self.is_there = bool(address)
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._unsent: dict[str, str] = {}
        self._troubled = False

    def tell(self, **assignments: object) -> None:
        """Send KEY=value for each; never waits and never fails. What could not be sent goes with the next."""
        if not self.is_there:
            return
        self._unsent |= {key: printable(value) for key, value in assignments.items()}  # one line each
        lines = (f"{key}={value}\n" for key, value in self._unsent.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end:
                end.sendto("".join(lines).encode(), self._address)
        except OSError as error:
            if not self._troubled and not isinstance(error, BlockingIOError):
                log.warning("cannot notify the service manager: %s", error.strerror or error)
                self._troubled = True
        else:
            self._unsent.clear()


class Supervision:
    """The supervision that the environment asks for, taken out of it: no child may report for this process.

    `interval_s`: call `beat` at least this often; infinite without a watchdog.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._notifier = Notifier(environment.pop("NOTIFY_SOCKET", ""))
        time_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        watched = time_us.isdecimal() and int(time_us) > 0 and pid in ("", str(os.getpid()))
        self._beat_s = int(time_us) / 1e6 / BEATS if watched else float("inf")
        self._beat_due = 0.0 if watched else float("inf")
        self._status_due = 0.0
        self._said = ""
        self.interval_s = self._beat_s / 2

    def starting(self, words: str) -> None:
        """Report the work that comes before the daemon is usable."""
        self._notifier.tell(STATUS=words[:SENTENCE_MAX])

    def ready(self) -> None:
        """Report that the daemon can be used from now on."""
        self._notifier.tell(READY=1)

    def beat(self, now: float, describe: Callable[[], str]) -> None:
        """Report progress: feed the watchdog if that is due, and send `describe()` if it is new.

        `now`: seconds, monotonic.
        """
        told: dict[str, object] = {}
        if now >= self._beat_due:
            told["WATCHDOG"] = 1
            self._beat_due = now + self._beat_s
        if self._notifier.is_there and now >= self._status_due:
            self._status_due = now + STATUS_S
            sentence = describe()[:SENTENCE_MAX]
            if sentence != self._said:
                told["STATUS"] = self._said = sentence
        if told:
            self._notifier.tell(**told)

    def stopping(self, words: str) -> None:
        """Report that the daemon begins to end."""
        self._status_due = 0.0  # what it waits for is news now
        self._notifier.tell(STOPPING=1, STATUS=words[:SENTENCE_MAX])

    def ended(self, words: str) -> None:
        """Report how the daemon ended; `systemctl status` shows it also of a service that has failed."""
        self._notifier.tell(STATUS=words[:SENTENCE_MAX])


def sentence_of(status: NodeStatus) -> str:
    """Return a node's status in one sentence: its state, how many peers are linked, and what it waits for."""
    linked = sum(peer.state is PeerState.CONNECTED for peer in status.peers)
    facts = [f"{status.state}"]
    facts += [f"step {status.trainer.steps:,}"] if status.trainer.steps else []
    facts.append(f"{linked} of {status.peers_total} peers linked")
    disk = status.checkpoint.trouble if status.checkpoint else ""
    plaintext = "PLAINTEXT (--insecure-plaintext)" if status.insecure_plaintext else ""
    waits = status.waits or status.not_ready
    return "; ".join([", ".join(facts), *filter(None, (waits, disk, plaintext))])
