"""A node's daemon: the only place where loop, clock and signals meet.

Holds the pure replica, the mesh of links and the trainer's control socket together, and carries out what
the replica orders. Decides nothing about replication itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.arrivals import event_of
from p2psgd.core.effects import (
    Alarm,
    Deliver,
    Drop,
    Effect,
    Halt,
    NextTurn,
    Note,
    Record,
    Reload,
    ReportDrained,
    SaveVotes,
    Send,
    WriteCheckpoint,
)
from p2psgd.core.events import (
    Event,
    GoodbyeReceived,
    LinkClosed,
    LinkDrained,
    LinkOpened,
    NodeStopping,
    OwnUpdateMade,
    RemovalAsked,
    TimePassed,
    TurnPassed,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.core.run_spec import RunSpec, check_limits, hash_coordinates
from p2psgd.core.timing import Timing
from p2psgd.discovery.hosts import Address, Hosts, find_hosts
from p2psgd.errors import ExitCode, P2psgdError, TrainerError, UsageError
from p2psgd.identity import claim_identity
from p2psgd.ipc.control_server import ControlServer
from p2psgd.ipc.host import OwnUpdate, TrainerState
from p2psgd.ipc.paths import SOCKET_NAME
from p2psgd.ipc.proposal import RunProposal
from p2psgd.keeper import Keeper
from p2psgd.net.drain import DRAIN_POLL_S, DRAIN_TIMEOUT_S, deliver_rest, leave
from p2psgd.net.greeting import make_greeting
from p2psgd.net.listening import bind, warn_of_plaintext
from p2psgd.net.mesh import Mesh, raise_failure
from p2psgd.net.refusals import Refusals
from p2psgd.ops.accounts import Accounts
from p2psgd.ops.event_log import EventLog
from p2psgd.ops.frame_store import FrameFile
from p2psgd.ops.link_speeds import LinkSpeeds
from p2psgd.ops.observe import observe_digest, observe_replication
from p2psgd.ops.recorder import RECORD_BYTES_MAX
from p2psgd.ops.removal import choose_removal
from p2psgd.ops.replication import Replication
from p2psgd.ops.stall import Stall
from p2psgd.ops.status import Vitals, describe_node
from p2psgd.supervisor import STOP_TIMEOUT_S, Supervisor
from p2psgd.wire.frames import FrameType

TICKS_PER_PATIENCE: Final = 25
ALARMS_MAX: Final = 20  # the latest; all are in the log
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("p2psgd.node")


@dataclass(frozen=True)
class NodeOptions:
    """What the command line says. `patience_s` is the one time setting; all others derive from it."""

    peers: Path | None
    listen: Address
    state: Path
    name: str | None = None
    trainer: str | None = None
    patience_s: float = 5.0
    log_budget_bytes: int = 256 * 1024 * 1024
    store_budget_bytes: int = 1024 * 1024 * 1024
    record: Path | None = None
    record_bytes_max: int = RECORD_BYTES_MAX


class Node:
    """One running daemon. Implements what the mesh and the control server ask of their host."""

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self._replica: Replica | None = None
        self._mesh: Mesh | None = None
        self._identity = claim_identity(options.state, name=options.name)
        self._timing = Timing(options.patience_s)
        self._events = EventLog(options.state)
        self._keeper = Keeper(self, options.state, self._identity.origin, self._timing)
        self._stall = Stall(self._events)
        self._speeds = LinkSpeeds(patience_s=options.patience_s)
        self._told_ready = False
        self._accounts = Accounts(options.record, record_bytes_max=options.record_bytes_max)
        self._state = "waiting for a trainer"
        self._started = time.monotonic()
        self._alarms: list[str] = []
        self._stopped_nodes: set[int] = set()
        self._loop_lag_s = 0.0
        self._congested = False
        self._trainer_ended = False
        self._late_failure: tuple[str, ExitCode] | None = None
        self._run: RunProposal | None = None
        self._hosts = Hosts((), None)
        self._listening: socket.socket | None = None
        self._listen = options.listen
        self._refusals = Refusals(options.patience_s, linked_now=self._is_linked, fail=self._fail)
        self._stop: asyncio.Future[tuple[str, ExitCode]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._control = ControlServer(self, options.state / SOCKET_NAME)
        self._supervisor: Supervisor | None = None

    # -- life

    async def serve(self) -> ExitCode:
        """Run until a signal, a fault that only a person can mend, or the end of what this replica can
        follow.
        """
        loop = asyncio.get_running_loop()
        self._stop = loop.create_future()
        loop.set_exception_handler(self._on_bug)
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            self._listening, self._listen = await bind(self.options.listen)
            if self.options.peers is not None:
                self._hosts = await find_hosts(
                    self.options.peers, self._listen, timeout_s=self.options.patience_s
                )
            self._control.start(loop)
            self._start_trainer()
            self._spawn(self._tick())
            warn_of_plaintext(self._listen)
            words, code = await self._stop
            if code is ExitCode.OK:
                await self._drain()
                words, code = self._late_failure or (words, code)
            if code is not ExitCode.OK:
                raise UsageError(words, code)
            return code
        finally:
            await self._close()

    def _start_trainer(self) -> None:
        if self.options.trainer is None:
            log.info("waiting for a trainer: start one with P2PSGD_CONTROL=%s", self.options.state.absolute())
            return
        self._supervisor = Supervisor(
            self.options.trainer,
            environment={"P2PSGD_CONTROL": str(self.options.state.absolute())},
            patience_s=self.options.patience_s,
            progress=lambda: int(self._control.trainer_status()["mini_batches"]),
            ended=self._on_trainer_ended,
            failed=self._fail,
        )
        self._supervisor.start()

    def _on_trainer_ended(self) -> None:
        if self._replica is None and self._state != "draining":
            words = f"the trainer ended without attaching to this node: {self.options.trainer}"
            self._fail(words, ExitCode.CONFIGURATION)
        elif self._state != "draining":
            self._state = "serving"
            self._trainer_ended = True

    async def _close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()
            await self._supervisor.stop()
        self._control.close()
        self._refusals.close()
        for task in self._tasks:
            task.cancel()
        if self._mesh is not None:
            await self._mesh.close()
        if self._listening is not None:
            self._listening.close()
        await self._keeper.close()
        await self._accounts.close()
        self._events.close()
        self._identity.release()

    def _on_signal(self) -> None:
        assert self._stop is not None
        if self._stop.done():
            log.warning("stopped at once, without waiting for acknowledgements")
            if self._supervisor is not None:
                self._supervisor.kill()
            os._exit(ExitCode.TEMPORARY)
        self._stop.set_result(("", ExitCode.OK))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(raise_failure)
        self._tasks.add(task)

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Nothing goes on half broken: what no code expected ends the daemon; systemd starts it again."""
        error = context.get("exception")
        log.error("%s", context.get("message"), exc_info=error)
        if error is not None and not isinstance(error, OSError):
            self._fail(f"internal error, please report it with the log: {error!r}", ExitCode.INTERNAL)

    def _is_linked(self) -> bool:
        return self._mesh is not None and bool(self._mesh.links)

    def _fail(self, words: str, code: ExitCode) -> None:
        if self._stop is not None and not self._stop.done():
            self._stop.set_result((words, code))
        elif self._late_failure is None:  # while draining: it ends as planned, but not as if all were well
            self._late_failure = (words, code)

    async def _drain(self) -> None:
        """Stop the trainer, send what it made, wait until every linked peer has acknowledged it."""
        self._state = "draining"
        log.info("stopping: waiting until peers have acknowledged this node's updates")
        self._control.pause_outbox(paused=False)
        self._control.finish()
        if self._supervisor is not None:
            await self._supervisor.stop()
        else:
            await self._until_detached()
        self._control.drain_outbox()
        self._control.outbox_closed = True
        if self._replica is None or self._mesh is None:
            return
        lost = await deliver_rest(self._replica, self._mesh, self._stopped_nodes)
        self.handle(NodeStopping())
        await self._keeper.finish(DRAIN_TIMEOUT_S)
        if lost and self._hosts.peers:
            words = (
                f"stopped, but no peer has acknowledged this node's last {lost} updates: they are in "
                f"{self.options.state} alone, and come back with this node"
            )
            self._fail(words, ExitCode.TEMPORARY)
        await leave(self._replica)

    async def _until_detached(self) -> None:
        """Give a trainer that somebody else started the time to end its mini-batch and leave."""
        for _ in range(round(STOP_TIMEOUT_S / DRAIN_POLL_S)):
            if not self._control.trainer_status()["attached"]:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def _tick(self) -> None:
        interval_s = self.options.patience_s / TICKS_PER_PATIENCE
        while True:
            due = time.monotonic() + interval_s
            await asyncio.sleep(interval_s)
            self._loop_lag_s = max(time.monotonic() - due, 0.9 * self._loop_lag_s)
            if self._replica is not None:
                self._replica.statuses.loop_lag_ms = int(self._loop_lag_s * 1000)
                self.handle(TimePassed())
                self._keeper.pass_time(
                    time.monotonic(),
                    bytes_applied=self._replica.parts.tally.bytes_applied,
                    log_capacity=self._replica.log.capacity,
                )
                self._look_at_links()
                self._regulate()

    def _look_at_links(self) -> None:
        assert self._replica is not None
        assert self._mesh is not None
        peers = [peer for peer in self._replica.peers.values() if peer.ready and peer.status]
        self._speeds.look(
            time.monotonic(),
            applied=sum(row.sequence for row in self._replica.frontier.rows()),
            applied_bytes=self._replica.parts.tally.bytes_applied,
            acknowledged={
                peer.origin.node: sum(row.sequence for row in (peer.status or {}).values()) for peer in peers
            },
        )
        others = sum(not dialler.ourselves for dialler in self._mesh.diallers)
        self._replica.membership.founders = 1 + others

    # -- the replica's orders

    def handle(self, event: Event) -> None:
        assert self._replica is not None
        assert self._mesh is not None
        for effect in self._replica.handle(event, time.monotonic()):
            match effect:
                case Send():
                    self._mesh.send(effect.peer, effect.frame)
                case Record():
                    self._record(effect)
                case Deliver():
                    self._control.deliver(effect.body)
                case ReportDrained():
                    self._mesh.report_drained(effect.peer)
                case Drop():
                    self._mesh.drop(effect.peer, effect.reason, effect.words)
                case _:
                    self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        """What the replica orders rarely."""
        match effect:
            case Alarm():
                self.alarm(effect.words)
            case Note():
                self.note(effect.kind, effect.words, effect.node)
            case SaveVotes():
                self._keeper.save_votes(effect)
            case WriteCheckpoint():
                self._keeper.write(effect)
            case NextTurn():
                asyncio.get_running_loop().call_soon(self.handle, TurnPassed())
            case Reload():
                self._control.replica_replaced()
                self._speeds.clear()
            case Halt():
                self._halt(effect)

    def _record(self, effect: Record) -> None:
        if effect.own:
            self._keeper.add_own(effect.frame)
        if self._accounts.recording:
            self._accounts.record(effect.frame)

    def _halt(self, effect: Halt) -> None:
        self._fail(effect.words, ExitCode.TEMPORARY if effect.again else ExitCode.FAILED)
        self._keeper.abandoning |= effect.abandon

    def _regulate(self) -> None:
        """Let the trainer make no more than the network and the peers take."""
        assert self._replica is not None
        self._congested = self._state != "draining" and self._replica.congested(time.monotonic())
        waits = self._state != "draining" and (not self._replica.ready or self._replica.stalled)
        self._control.pause_outbox(paused=self._congested or waits)
        self._stall.update(self._replica.waiting_for() if waits else "", time.monotonic())
        if not (self._replica.ready and self._told_ready):
            self._told_ready = self._replica.ready
            self._control.readiness_changed()

    # -- KeeperHost

    def alarm(self, words: str) -> None:
        log.error("%s", ascii(words)[1:-1])
        self._alarms = [*self._alarms, words][-ALARMS_MAX:]
        self._events.write("alarm", words)

    def note(self, kind: str, words: str, node: int | None = None) -> None:
        log.info("%s", ascii(words)[1:-1])
        self._events.write(kind, words, node)

    def request_trainer_state(self) -> None:
        """Not of a trainer that is held up: giving its state would empty its outbox into a full log."""
        assert self._replica is not None
        held_up = not self._replica.ready or self._replica.stalled
        if not (held_up and self._control.trainer_status()["attached"]) or self._state == "draining":
            self._control.request_state()

    def sequence(self) -> int:
        assert self._replica is not None
        return self._replica.sequence

    # -- MeshHost

    def link_opened(self, peer: Origin, name: str) -> None:
        self._refusals.linked()
        self._events.write("link", f"linked with {name}", peer.node)
        self._stopped_nodes.discard(peer.node)
        self.handle(LinkOpened(peer, name))

    def link_closed(self, peer: Origin, words: str) -> None:
        self._events.write("lost", f"lost the link: {words}", peer.node)
        self.handle(LinkClosed(peer))
        self._regulate()

    def link_drained(self, peer: Origin) -> None:
        self.handle(LinkDrained(peer))

    def frame_received(self, peer: Origin, frame_type: FrameType, body: bytes | bytearray) -> None:
        event = event_of(peer, frame_type, body)
        if event is None:
            return
        self.handle(event)
        if frame_type is FrameType.STATUS:
            self._regulate()
        elif isinstance(event, GoodbyeReceived):
            self._stopped_nodes.add(peer.node)

    def refused_by_peer(self, code: str, words: str) -> None:
        self._refusals.refused(code, words)

    # -- ControlHost

    def ready(self) -> str:
        if self._replica is None or self._replica.ready or self._state == "draining":
            return ""
        return self._replica.waiting_for()

    def trainer_state(self, state: TrainerState) -> None:
        self._keeper.trainer_state(state)

    def digest(self, *, scrub: bool) -> dict[str, Any]:
        assert self._replica is not None
        if scrub:
            self._replica.parts.sweeping.scrub_due = time.monotonic()
        return observe_digest(self._replica, time.monotonic())

    def remove(self, node: str, *, forbid: bool) -> int:
        assert self._replica is not None
        names, view = self._replica.parts.names, self._replica.membership.view
        chosen = choose_removal(node, forbid=forbid, me=self._replica.me.node, names=names, view=view)
        self.handle(RemovalAsked(chosen, forbid))
        return chosen

    def name(self) -> str:
        return self._identity.name

    def share(self) -> tuple[int, int] | None:
        return self._hosts.share if self._hosts.peers else (0, 1)

    def run(self) -> RunProposal | None:
        return self._run

    def define_run(self, proposal: RunProposal, coordinates: NDArray[np.int32]) -> None:
        fields = (proposal.tensors, proposal.quantum_log2, proposal.mode, proposal.label)
        spec = RunSpec(*fields, hash_coordinates(coordinates), proposal.two_nodes)
        if self._replica is not None:
            if spec.fingerprint != self._replica.spec.fingerprint:
                here, there = self._replica.spec.fingerprint.hex()[:16], spec.fingerprint.hex()[:16]
                raise TrainerError(
                    f"this node already trains another run: fingerprint {here} here, {there} from this "
                    "trainer; stop the node first to begin another"
                )
            return
        try:
            check_limits(spec)
        except ValueError as error:
            raise TrainerError(str(error)) from None
        me = self._identity.origin
        try:
            restored, trainer, votes = self._keeper.open(spec, coordinates)
        except P2psgdError as error:
            raise TrainerError(str(error)) from None
        store = FrameFile(self.options.state, budget_bytes=self.options.store_budget_bytes)
        if trainer is not None:
            self._control.restore(trainer)
        replica = Replica(
            spec,
            me=me,
            coordinates=coordinates,
            now=time.monotonic(),
            timing=self._timing,
            founders=len(self._hosts.peers) + 1,
            votes=votes,
            restored=restored,
            log_budget_bytes=self.options.log_budget_bytes,
            store=store,
            store_budget_bytes=self.options.store_budget_bytes,
        )
        replica.parts.names[me.node] = self._identity.name
        greeting = make_greeting(spec, me, self._identity.name)
        self._mesh = Mesh(self, greeting, self.options.patience_s, time.monotonic)
        self._run, self._replica = proposal, replica  # from here on nothing can be refused
        self._events.names = replica.parts.names.get
        self._accounts.begin(spec, me)
        assert self._listening is not None
        self._spawn(self._mesh.start(self._listening, self._hosts.peers))
        log.info(
            "run %s: %d weights, quantum 2^%d", spec.fingerprint.hex()[:16], spec.weights, spec.quantum_log2
        )

    def replica(self) -> NDArray[np.int32]:
        assert self._replica is not None
        return self._replica.lattice.coordinates

    def replica_digest(self) -> int:
        assert self._replica is not None
        return self._replica.lattice.digest

    def own_updates(self, updates: list[OwnUpdate]) -> None:
        for update in updates:
            self._accounts.count(update)
            self.handle(OwnUpdateMade(update.mini_batch, update.step, update.payload, update.words))
        self._regulate()

    def peer_mini_batches(self) -> dict[int, int]:
        if self._replica is None:
            return {}
        return {
            node: count
            for node, count in self._replica.frontier.mini_batches().items()
            if node != self._replica.me.node
        }

    def asked_to_finish(self) -> None:
        if self._supervisor is not None:
            self._supervisor.finish()

    def trainer_attached(self, pid: int) -> None:
        log.info("trainer %d attached", pid)
        self._events.write("trainer", f"trainer {pid} attached")
        if self._state != "draining":
            self._state = "training"

    def trainer_left(self, *, finished: bool, words: str) -> None:
        why = words or ("done" if finished else "gone")
        log.info("trainer left: %s", ascii(why)[1:-1])
        self._events.write("trainer", f"the trainer left: {why}")
        if self._state != "draining":
            self._state = "serving" if finished else "waiting for a trainer"

    def compression(self) -> dict[str, Any]:
        return self._accounts.compression()

    def status(self) -> dict[str, Any]:
        supervisor, figures = self._supervisor, self._control.trainer_status()
        trainer = {
            **figures,
            "supervised": supervisor is not None,
            "finished": figures["finished"] or self._trainer_ended,
            "restarts": 0 if supervisor is None else supervisor.restarts,
            "crash": "" if supervisor is None else supervisor.words,
        }
        vitals = Vitals(
            state=self._state,
            started=self._started,
            now=time.monotonic(),
            listen=str(self._listen),
            control=str(self.options.state.absolute()),
            loop_lag_ms=self._loop_lag_s * 1000,
            congested=self._congested,
            alarms=self._alarms,
            stopped_nodes=self._stopped_nodes,
            trainer=trainer,
            accounts=self._accounts.status(),
            replication=self._observe(),
            events=self._events.status(),
        )
        return describe_node(self._identity, vitals, self._replica, self._mesh)

    def _observe(self) -> Replication | None:
        if self._replica is None:
            return None
        now = time.monotonic()
        return observe_replication(
            self._replica,
            now,
            checkpoint=self._keeper.figures(now),
            stall=self._stall.figures(now),
            slow_links=self._speeds.slow(self._replica.parts.names),
        )


def run_node(options: NodeOptions) -> ExitCode:
    """Run a daemon to its end, on uvloop or, with P2PSGD_LOOP=asyncio, on the standard loop."""
    if os.environ.get("P2PSGD_LOOP") == "asyncio":
        factory = asyncio.new_event_loop
    else:
        import uvloop

        factory = uvloop.new_event_loop
    node = Node(options)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(node.serve())
