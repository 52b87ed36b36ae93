"""One node of a chaos run: its daemon's lives one after the other, kept up as a service manager would.

Whatever a life leaves behind, its trainer above all, is killed with it, as with a unit's control group.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from p2psgd.base.errors import P2psgdError
from p2psgd.cli.local.cluster import MARK, kill_marked, mark_of
from p2psgd.cli.local.verify import NodeReplica
from tests.certificates import Certificates
from tests.chaos import counts, evaluations
from tests.chaos.counts import Stretch
from tests.chaos.disks import Disk
from tests.chaos.evaluations import Evaluated
from tests.chaos.events import Event, read
from tests.chaos.memory import flip
from tests.daemons import Daemon

FAILURE_TIMEOUT_S: Final = 2.0
RESTART_S: Final = 1.0  # after an end that nobody asked for
ANSWER_LIMIT_S: Final = 0.5  # a healthy daemon answers within milliseconds
PORT: Final = 7315
# All nodes but the first have a log that holds less than half a minute of all updates: it is trimmed, and
# whoever is away for long is evicted and needs a snapshot. The first keeps everything.
SMALL_LOG: Final = ("--log-budget", "1", "--log-disk-budget", "1")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a daemon held at a quiet point. `own_kib` leaves out what it shares with its trainer."""

    at: float
    rss_kib: int
    own_kib: int
    descriptors: int
    log_bytes: int


@dataclass(slots=True)
class Life:
    """A daemon from its start to its end; `asked`: the signals of ours that are to end it."""

    daemon: Daemon
    began: float
    asked: set[signal.Signals] = field(default_factory=set)
    began_at: float = field(default_factory=time.time)  # on the wall clock, as is
    ended_at: float = float("inf")
    stopped: bool = False
    flipped_after: int | None = None  # so many quarantines; None: no bit was flipped
    status: dict[str, Any] = field(default_factory=dict)  # the last it told
    rss_kib_max: int = 0
    memories: list[Memory] = field(default_factory=list)
    code: int | None = None
    log_read: int = 0  # bytes

    @property
    def is_flipped(self) -> bool:
        """A bit was flipped in its replica, and its last status does not tell that it has noticed."""
        quarantines = (self.status.get("counters") or {}).get("quarantines", 0)
        return self.flipped_after is not None and quarantines <= self.flipped_after

    def new_lines(self) -> list[str]:
        """The whole lines in its log since the last call."""
        with self.daemon.log.open("rb") as log:
            log.seek(self.log_read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.log_read += len(whole)
        return whole.decode(errors="replace").splitlines()


class Node:
    """Node `number`, with its state on `disk`, its logs and its trainer's notes in `directory`."""

    def __init__(
        self,
        number: int,
        *,
        directory: Path,
        hosts: Path,
        disk: Disk,
        run: str,
        within: list[str],
        certificates: Certificates,
        mode: str,
    ) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.disk = disk
        self.notes = directory / f"{self.name}.batches"
        self.lives: list[Life] = []
        self.down_until: float | None = None
        self._directory = directory
        self._mark = mark_of(run, self.name)
        # Should this process be killed, the daemons end by themselves, and their trainers with them.
        self._within = ["setpriv", "--pdeathsig", "TERM", *within]
        closure = mode == "closure"
        script = "tests.chaos.closure_trainer" if closure else "tests.chaos.trainer"
        self._options = (
            *(
                "--peers",
                str(hosts),
                "--listen",
                f"0.0.0.0:{PORT}",
                "--failure-timeout",
                f"{FAILURE_TIMEOUT_S:g}",
            ),
            *certificates.options(self.name),
            *([] if number == 0 else SMALL_LOG),
            *("--trainer", f"{sys.executable} -m {script} {self.notes} {'' if closure else mode}".rstrip()),
        )

    @property
    def life(self) -> Life | None:
        """The living daemon."""
        return self.lives[-1] if self.lives and self.lives[-1].code is None else None

    def start(self, now: float) -> None:
        """Begin a life."""
        self.down_until = None
        log = self._directory / f"{self.name}.{len(self.lives) + 1}.log"
        daemon = Daemon(
            self.disk.path, *self._options, within=self._within, log=log, environment={MARK: self._mark}
        )
        self.lives.append(Life(daemon, now))

    def tend(self, now: float) -> Life | None:
        """Start the daemon again once its time has come; returns the life that has just ended, if one has."""
        life = self.life
        if life is None:
            if self.down_until is not None and now >= self.down_until:
                self.start(now)
            return None
        life.code = life.daemon.process.poll()
        if life.code is None:
            return None
        life.ended_at = time.time()
        kill_marked(self._mark)
        if self.down_until is None:
            self.down_until = 0.0 if life.asked else RESTART_S
        self.down_until += now
        return life

    def kill(self, back_after_s: float) -> bool:
        """kill -9 of all of it; False if there is nothing."""
        life = self.life
        if life is None or signal.SIGKILL in life.asked:
            return False
        self.look(0.2)
        life.asked.add(signal.SIGKILL)
        self.down_until = back_after_s
        life.daemon.process.kill()
        kill_marked(self._mark)
        life.daemon.process.wait(30)
        return True

    def kill_trainer(self) -> bool:
        """kill -9 of the trainer that the daemon told of last; False if it is gone."""
        self.look(0.2)
        life = self.life
        pid = None if life is None else life.status.get("trainer", {}).get("pid")
        if pid is None:
            return False
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:  # the number may have become somebody else's
                if f"{MARK}={self._mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    return True
            finally:
                os.close(process)
        return False

    def flip(self, share: float) -> bool:
        """Change a bit of the replica in the daemon's memory; False if it has none now."""
        if self.look(0.2) is None or self.life is None or not self.life.status.get("run"):
            return False
        daemon = self.life.daemon
        index = int(share * self.life.status["run"]["weights"])
        with contextlib.suppress(OSError, P2psgdError):
            pid = daemon.process.pid
            if flip(pid, lambda: np.frombuffer(daemon.replica()[1], np.int32), index):
                self.life.flipped_after = self.life.status["counters"]["quarantines"]
                return True
        return False

    def scrub(self) -> None:
        """Have a flipped bit found soon."""
        if self.life is not None and self.life.is_flipped:
            with contextlib.suppress(P2psgdError):
                self.life.daemon.scrub()

    def stop(self, back_after_s: float | None) -> bool:
        """SIGTERM, once; None: for good. False if there is nothing to stop."""
        life = self.life
        if life is None or life.asked:
            return False
        life.asked.add(signal.SIGTERM)
        self.down_until = float("inf") if back_after_s is None else back_after_s
        life.daemon.process.terminate()
        return True

    def suspend(self, *, stopped: bool) -> bool:
        """SIGSTOP or SIGCONT; False if there is nothing to do."""
        life = self.life
        if life is None or life.stopped == stopped:
            return False
        life.stopped = stopped
        life.daemon.process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
        return True

    def end(self) -> None:
        """Leave no process."""
        if self.life is not None:
            self.life.daemon.process.kill()
        kill_marked(self._mark)
        if self.life is not None:
            self.life.daemon.process.wait()

    def look(self, timeout_s: float = ANSWER_LIMIT_S) -> dict[str, Any] | None:
        """Ask for the status and note it; None if there is no answer."""
        life = self.life
        if life is None or life.stopped:
            return None
        status = life.daemon.status(timeout_s)
        if status is not None:
            life.status = status
            life.rss_kib_max = max(life.rss_kib_max, self._kib("VmRSS"))
        return status

    def remember(self, now: float) -> None:
        """Note what the living daemon holds."""
        life = self.life
        assert life is not None
        descriptors = len(os.listdir(f"/proc/{life.daemon.process.pid}/fd"))
        log_bytes = (life.status.get("log") or {}).get("bytes", 0)  # in memory; there may be more on disk
        life.memories.append(Memory(now, self._kib("VmRSS"), self._kib("RssAnon"), descriptors, log_bytes))

    def keep_status(self) -> None:
        """Write the last status of its newest life beside its logs, for whoever looks into a failure."""
        if self.lives:
            self.notes.with_suffix(".status.json").write_text(json.dumps(self.lives[-1].status, indent=2))

    def replica(self) -> NodeReplica:
        """A copy of the living daemon's replica."""
        assert self.life is not None
        digest, coordinates = self.life.daemon.replica()
        run = self.life.status["run"]
        return NodeReplica(
            self.name,
            run["mode"],
            run["quantum_log2"],
            digest,
            np.frombuffer(coordinates, np.int32),
            run["weights"],
        )

    def stamps(self) -> list[float]:
        """When its trainers have ended their mini-batches, on the monotonic clock."""
        return [
            float(line) for line in self._noted() if re.fullmatch(r"\d+\.\d{4}", line)
        ]  # a kill may tear one

    def stretches(self) -> dict[int, Stretch]:
        """What its trainers have noted that their mini-batches count to."""
        return counts.read(self._noted())

    def evaluated(self) -> Evaluated:
        """The results of evaluations that its trainers have noted."""
        return evaluations.read(self._noted())

    def _noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def events(self) -> list[Event]:
        """What its event log has kept, of all lives."""
        return read(self.disk.path)

    def _kib(self, field: str) -> int:
        assert self.life is not None
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.life.daemon.process.pid}/status").read_text()
            if found := re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE):
                return int(found[1])
        return 0
