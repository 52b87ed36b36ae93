"""Daemons for tests: a real control server on a loop in a thread, around a host with a numpy replica."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from p2psgd.base.errors import UsageError
from p2psgd.core.view import View
from p2psgd.ipc import layout
from p2psgd.ipc.ring_buffer import entry_bytes
from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.ipc.server import ControlServer
from p2psgd.ipc.trainer_memory import Given
from p2psgd.ipc.trainer_session import TrainerState
from p2psgd.node.removal import standing_of
from p2psgd.wire import codec
from p2psgd.wire.evaluation import EvaluationAsked
from p2psgd.wire.mode import ASYNC
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader, pack_update, parse_update
from tests import DEADLINE_S

WEIGHTS = 3000
QUANTUM = 2.0**-20
DIGEST_KEY = 0x9E3779B97F4A7C15
ZEROS = np.zeros(WEIGHTS, dtype=np.float32)
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds; fail after a deadline that only a hang can miss."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s for this: {what}"
        time.sleep(0.002)


def smallest_ring(longest_entry_bytes: int) -> int:
    """The smallest capacity that a ring with such entries may have."""
    return 1 << (entry_bytes(longest_entry_bytes) - 1).bit_length()


def smallest_rings(weights: int) -> dict[str, int]:
    """Ring sizes that fill up at once."""
    return {
        "inbox_bytes": smallest_ring(layout.inbox_entry_bytes_max(weights)),
        "outbox_bytes": smallest_ring(layout.outbox_entry_bytes(weights, ASYNC)[1]),
    }


def spike(index: int, quanta: float) -> NDArray[np.float32]:
    """A delta of one weight."""
    delta = ZEROS.copy()
    delta[index] = quanta * QUANTUM
    return delta


def make_words(indices: NDArray[Any], negative: NDArray[Any]) -> NDArray[np.uint32]:
    """Words of distinct ascending indices and signs."""
    words: NDArray[np.uint32] = (indices.astype(np.uint32) << np.uint32(1)) | negative.astype(np.uint32)
    return words


def make_update(words: NDArray[np.uint32], weights: int, **header: Any) -> bytes:
    """The body of a peer's UPDATE frame."""
    fields: dict[str, Any] = {
        "node": 7,
        "incarnation": 1,
        "sequence": 1,
        "digest": 0,
        "steps": 1,
        "magnitude": 1,
    }
    return pack_update(UpdateHeader(**{**fields, **header}, count=len(words)), codec.encode(words, weights))


def changes_of(updates: list[OwnUpdateMade], weights: int) -> NDArray[np.float64]:
    """What these updates change in all weights."""
    changes = np.zeros(weights)
    for update in updates:
        changes[update.words >> 1] += (
            QUANTUM * update.magnitude * (1 - 2 * (update.words & 1).astype(np.float64))
        )
    return changes


class NumpyHost:
    """A control host: the replica in numpy, and everything that was said to it, kept."""

    def __init__(self, node: int = 1) -> None:
        self.node = self.node_id = node
        self.name = f"node-{node}"
        self.peers: list[Callable[[bytes], None]] = []
        self.proposal: RunProposal | None = None
        self.coordinates: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self.updates: list[OwnUpdateMade] = []
        self.attached: list[int] = []
        self.left: list[tuple[bool, str]] = []
        self.alarms: list[str] = []
        self.steps: dict[int, int] = {}
        self.rank_value: tuple[int, int] | None = (1, 4)
        self.view_rank_value = (0, 1)
        self.status_value: dict[str, Any] = {"node": f"node-{node}"}
        self.finish_requests = 0
        self.turns = 0  # of the loop in which something was taken
        self.scrubs = 0
        self.digest_value: dict[str, Any] = {"scrub": {}}
        self.removed: list[tuple[str, bool]] = []
        self.view = View()
        self.unready = ""
        self.shares: list[ContributionMade | BucketContributed] = []  # of the round under way
        self.states: list[TrainerState] = []
        self.updates_at_states: list[int] = []
        self._initial = b""
        self.on_shared: Callable[[], None] = lambda: None

    def status(self) -> dict[str, Any]:
        return self.status_value

    def compression(self) -> dict[str, Any]:
        return {"total": {"updates": len(self.updates)}}

    def digest(self, *, scrub: bool) -> dict[str, Any]:
        self.scrubs += scrub
        return {**self.digest_value, "scrub": {**self.digest_value["scrub"], "count": self.scrubs}}

    def remove(self, node: str, *, forbid: bool) -> int:
        if node != "node-7":
            raise UsageError(f"no node is called {node!r}")
        self.removed.append((node, forbid))
        return 7

    def member(self, node: int) -> dict[str, Any]:
        return standing_of(node, self.view, {7: "node-7"}).model_dump()

    def view_rank(self) -> tuple[int, int]:
        return self.view_rank_value

    def rank(self) -> tuple[int, int] | None:
        return self.rank_value

    def define_run(self, proposal: RunProposal, coordinates: NDArray[np.int32]) -> None:
        initial = hashlib.sha256(repr(proposal).encode() + coordinates.tobytes()).digest()
        if self.proposal is None:
            self.proposal, self._initial, self.coordinates = proposal, initial, coordinates.copy()
        elif self._initial != initial:
            raise UsageError(f"this daemon trains run {self._initial.hex()[:16]}, not {initial.hex()[:16]}")

    def run(self) -> RunProposal | None:
        return self.proposal

    def replica(self) -> NDArray[np.int32]:
        return self.coordinates

    def replica_digest(self) -> int:
        return codec.digest_coordinates(self.coordinates, DIGEST_KEY)

    def trainer_weights(self) -> NDArray[np.int32]:
        return self.coordinates

    def trainer_digest(self) -> int:
        return self.replica_digest()

    def digest_key(self) -> int:
        return DIGEST_KEY

    def trainer_gave(self, given: Given) -> None:
        """An update goes to the peers at once; a share is kept until a round completes with it (rings.py)."""
        assert not isinstance(given, EvaluationAsked)
        if not isinstance(given, OwnUpdateMade):
            self.shares.append(given)
            self.on_shared()
            return
        self.updates.append(given)
        if given.rate:  # a gradient, which owners make changes of
            return
        self.apply(given.words, given.magnitude)
        header = UpdateHeader(
            self.node, 1, len(self.updates), 0, given.steps, given.magnitude, len(given.words)
        )
        for send in self.peers:
            send(pack_update(header, given.payload))

    def outbox_taken(self, taken: Sequence[Given]) -> None:
        self.turns += bool(taken)

    def peer_update(self, body: bytes) -> None:
        header, payload = parse_update(body, self.coordinates.size)
        self.apply(codec.decode(payload, header.count, self.coordinates.size), header.magnitude)
        self.steps[header.node] = max(header.steps, self.steps.get(header.node, 0))

    def trainer_state(self, state: TrainerState) -> None:
        residual = None if state.residual is None else state.residual.copy()
        self.states.append(dataclasses.replace(state, residual=residual))
        self.updates_at_states.append(len(self.updates))

    def ready(self) -> str:
        return self.unready

    def peer_steps(self) -> dict[int, int]:
        return self.steps

    def asked_to_finish(self) -> None:
        self.finish_requests += 1

    def alarm(self, words: str) -> None:
        self.alarms.append(words)

    def trainer_attached(self, pid: int) -> None:
        self.attached.append(pid)

    def trainer_left(self, *, finished: bool, words: str) -> None:
        self.left.append((finished, words))

    def apply(self, words: NDArray[np.uint32], step: int) -> None:
        signs = 1 - 2 * (words & 1).astype(np.int32)
        self.coordinates[words >> 1] += step * signs


class Daemon:
    """A control server that runs in a thread of its own until `stop`, which raises what failed in there."""

    def __init__(
        self,
        state: Path,
        loop_factory: LoopFactory,
        node: int = 1,
        *,
        path: Path | None = None,
        **options: Any,
    ) -> None:
        self.path = path or state / "control.sock"
        self.host = NumpyHost(node)
        self.server = ControlServer(self.host, self.path, **options)
        self.server.session.handle = self.host.trainer_gave
        self._faults: list[dict[str, Any]] = []
        self.loop = loop_factory()
        self.loop.set_exception_handler(lambda _, context: self._faults.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        try:
            self.call(self.server.start, self.loop)
        except BaseException:
            self._end_loop()
            raise

    def call(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a function on the loop and return what it returns."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return future.result(DEADLINE_S)

    def peer_update(self, body: bytes) -> None:
        """A peer's update arrives: applied to the replica and delivered to the trainer."""
        self.call(self._take_in, body)

    def send_to(self, other: Daemon) -> None:
        """From now on the other daemon gets this one's updates."""

        def send(body: bytes) -> None:
            other.loop.call_soon_threadsafe(other._take_in, body)

        self.host.peers.append(send)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition that is looked at on the loop."""
        wait_until(lambda: self.call(condition), what)

    def weights(self) -> NDArray[np.float32]:
        """The replica in float32, exactly."""
        return self.call(lambda: (self.host.coordinates * QUANTUM).astype(np.float32))

    def take_all(self) -> None:
        """Wait until everything that was published has been taken."""

        def taken() -> bool:
            attachment = self.server.session.attachment
            return attachment is None or attachment.outbox.tail == attachment.published_bytes()

        self.until(taken, "the outbox is taken")

    def trainer_status(self) -> dict[str, Any]:
        return self.call(self.server.session.status)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.call(self.server.close)
            self._end_loop()
        assert not self._faults, self._faults

    def _take_in(self, body: bytes) -> None:
        with contextlib.suppress(PeerError):  # tests of garbage deliver what no replica would take
            self.host.peer_update(body)
        self.server.session.deliver(body)

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.close()


StartDaemon = Callable[..., Daemon]  # the fixture start_daemon
