"""What the daemons of a local run say of themselves, asked over their control sockets like anybody could.

A daemon that is silent (stopped, or starved of its core) is asked less often and never waited for long, so
that it cannot hide what the others do. Its last status is kept, with a note of how long it has been silent.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from p2psgd.errors import DaemonLost, P2psgdError, UsageError
from p2psgd.ipc.answers import ReplicaAnswer, check_answer
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ipc.datagrams import close_descriptors
from p2psgd.ipc.paths import control_path
from p2psgd.ipc.requests import ReplicaRequest
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.local.cluster import LocalDaemon
from p2psgd.local.proof import NodeReplica
from p2psgd.local.speed import Speed
from p2psgd.ops.figures import Status, node_figures

ANSWER_LIMIT_S = 0.5  # a healthy daemon answers within milliseconds
SILENT_AGAIN_S = 2.0  # after silence, so that a stopped daemon takes at most a fifth of the time
SILENT_SAID_S = 3.0  # a shorter silence is no news


class Observer:
    """The latest status of each daemon."""

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest: dict[str, Status] = {name: {"node": name} for name in names}
        self._answered: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._speeds = {name: Speed() for name in names}

    def look(self, daemons: Sequence[LocalDaemon]) -> None:
        """Ask these daemons for their status."""
        for daemon in daemons:
            if self._clock() >= self._not_before.get(daemon.name, 0):
                self._ask(daemon)

    def latest(self, name: str) -> Status:
        """Return a node's last status, {"node": name} before the first, with a note when it is silent."""
        status = self._latest[name]
        silent_s = self._clock() - self._answered.get(name, self._clock())
        if silent_s < SILENT_SAID_S:
            return status
        return {**status, "waits": f"its daemon has not answered for {silent_s:.0f} s"}

    def has_answered_since(self, name: str, moment: float) -> bool:
        """Return whether this node's status is newer than `moment`."""
        return self._answered.get(name, -1.0) > moment

    def speeds(self) -> dict[str, float | None]:
        """Return the mean samples per second of each node over its time in training, None where unknown."""
        return {name: speed.samples_per_s for name, speed in self._speeds.items()}

    def _ask(self, daemon: LocalDaemon) -> None:
        try:
            with _client(daemon, ANSWER_LIMIT_S) as client:
                status: dict[str, Any] = client.request("status")["status"]
        except DaemonLost:
            self._not_before[daemon.name] = self._clock() + SILENT_AGAIN_S
        except UsageError:
            pass  # it does not listen yet, or no longer: the process table says which
        else:
            self._latest[daemon.name] = {**status, "node": daemon.name}
            self._answered[daemon.name] = self._clock()
            self._speeds[daemon.name].note(node_figures(status).samples, self._clock())


def ask_to_finish(daemon: LocalDaemon) -> None:
    """Ask a node's trainer to end after its mini-batch; nothing happens if the daemon does not answer."""
    with suppress(P2psgdError), _client(daemon, ANSWER_LIMIT_S) as client:
        client.request("finish")


def end_trainer(daemon: LocalDaemon) -> None:
    """SIGTERM to the trainer that is attached to a node, if the daemon names one."""
    with suppress(P2psgdError, ProcessLookupError), _client(daemon, ANSWER_LIMIT_S) as client:
        pid = client.request("status")["status"]["trainer"]["pid"]
        if pid is not None:
            os.kill(pid, signal.SIGTERM)


def fetch_compression(daemon: LocalDaemon) -> dict[str, Any]:
    """Get how a node's own updates compress, tensor by tensor; nothing when the daemon does not answer."""
    with suppress(P2psgdError), _client(daemon, ANSWER_LIMIT_S) as client:
        compression: dict[str, Any] = client.request("compression")["compression"]
        return compression
    return {}


def fetch_replica(daemon: LocalDaemon) -> NodeReplica:
    """Get a copy of a node's replica; raises P2psgdError when the daemon is gone or gives something else."""
    with ControlClient(control_path(daemon.directory)) as client:
        fields, descriptors = client.exchange(ReplicaRequest())
    try:
        answer = check_answer(ReplicaAnswer, fields)
        if len(descriptors) != 1:
            raise UsageError(
                f"{daemon.name} sent {len(descriptors)} descriptors instead of one with its replica"
            )
        coordinates = map_segment(descriptors[0], np.int32, answer.weights, Access.SEALED)
    finally:
        close_descriptors(descriptors)
    return NodeReplica(daemon.name, answer.mode, answer.quantum_log2, answer.digest, coordinates)


def _client(daemon: LocalDaemon, timeout_s: float) -> ControlClient:
    return ControlClient(control_path(daemon.directory), timeout_s=timeout_s)
