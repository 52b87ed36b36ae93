"""The server of the control socket, and the queue of trainers that want to attach."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from p2psgd.errors import P2psgdError, TrainerError
from p2psgd.ipc.host import ControlHost, TrainerState
from p2psgd.ipc.listener import Connection, Listener
from p2psgd.ipc.protocol import (
    ERROR_CHARACTERS_MAX,
    VERSION,
    AttachRequest,
    CompareRequest,
    CompressionRequest,
    Datagram,
    DetachRequest,
    DigestRequest,
    FinishRequest,
    MemberRequest,
    ReloadRequest,
    RemoveRequest,
    ReplicaRequest,
    ReportRequest,
    StateRequest,
    StatusRequest,
    close_descriptors,
    pack_answer,
    pack_refusal,
    parse_request,
)
from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.ipc.segments import DenseSegments, read_sealed_coordinates, sealed_copy
from p2psgd.ipc.trainer_session import TrainerPort, TrainerSeat
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode

# ----------------------------------------------------------------------------
# Where a trainer waits that wants to attach while its node is not ready for one.
#
# It is told why, and again when that has changed, at most every 2 s and never before it has read what it was
# told last; then it is let in, as late as that may be.


SAY_EVERY_S = 2.0


class Gate:
    """Holds one attaching trainer; `let_in(connection, pid)` is called once the host is ready, and may have
    it held on.
    """

    def __init__(
        self,
        host: ControlHost,
        *,
        send: Callable[[Connection, bytes], bool],
        let_in: Callable[[Connection, int], None],
    ) -> None:
        self.connection: Connection | None = None
        self.pid = 0
        self._host = host
        self._send = send
        self._let_in = let_in
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look_due: asyncio.Handle | None = None
        self._said = ""
        self._silent_until = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop."""
        self._loop = loop

    def hold(self, connection: Connection, pid: int) -> None:
        """Let this trainer in, now or when the host is ready; nobody else may be waiting."""
        assert self.connection is None, self.pid
        self._said, self._silent_until = "", 0.0
        if self._host.ready():
            self.connection, self.pid = connection, pid
            self._look()
        else:
            self._let_in(connection, pid)

    def hold_on(self, connection: Connection, pid: int) -> None:
        """`let_in` could not do all in one turn of the loop: it is called again in the next one."""
        self.connection, self.pid = connection, pid
        self.look_soon()

    def lost(self, connection: Connection) -> None:
        """A connection has ended; if it was the waiting trainer's, nobody waits any more."""
        if connection is self.connection:
            self.connection = None

    def look_soon(self) -> None:
        """The host's readiness may have changed: look in the next turn of the loop."""
        if self.connection is not None:
            assert self._loop is not None
            self._look_at(self._loop.call_soon(self._look))

    def close(self) -> None:
        """Nobody is let in any more; who waits hears it from the listener."""
        self.connection = None
        if self._look_due is not None:
            self._look_due.cancel()

    def _look_at(self, due: asyncio.Handle) -> None:
        """One look is planned at a time: the last word counts."""
        if self._look_due is not None:
            self._look_due.cancel()
        self._look_due = due

    def _look(self) -> None:
        connection = self.connection
        if connection is None:
            return
        assert self._loop is not None
        now, words = self._loop.time(), self._host.ready()
        if not words:
            self.connection = None
            self._let_in(connection, self.pid)
        elif words == self._said:
            return
        elif now < self._silent_until or connection.is_owed_a_read():
            self._look_at(self._loop.call_later(max(0.1, self._silent_until - now), self._look))
        else:
            self._said, self._silent_until = words, now + SAY_EVERY_S
            self._send(connection, pack_answer({"waits": words[:ERROR_CHARACTERS_MAX]}))


# ----------------------------------------------------------------------------
# The daemon's control socket: what each request gets for an answer.
#
# Runs on the daemon's loop by plain readers (asyncio and uvloop alike); no callback waits. Whatever comes in
# is checked by protocol.py first; a bad request gets an answer, is counted, and changes nothing. The
# trainer's part is trainer_session.py, decisions about the run are the host's (host.py).


class ControlServer:
    """The control socket at `path` and the trainer behind it.

    `also` is made a link to it. Users of `group` (an id) may use it; without one this user and root alone.
    `inbox_bytes` and `outbox_bytes` replace the usual sizes of the rings.
    """

    def __init__(
        self,
        host: ControlHost,
        path: Path,
        *,
        also: Path | None = None,
        group: int | None = None,
        inbox_bytes: int | None = None,
        outbox_bytes: int | None = None,
    ) -> None:
        self._host = host
        self._listener = Listener(
            path,
            also=also,
            group=group,
            on_datagram=self._on_datagram,
            on_close=self._on_close,
            on_refused=self._count_refusal,
        )
        self._seat = TrainerSeat(
            host,
            self._listener,
            inbox_bytes=inbox_bytes,
            outbox_bytes=outbox_bytes,
        )
        self._gate = Gate(host, send=self._send, let_in=self._let_in)
        self._refused_requests = 0

    @property
    def port(self) -> TrainerPort | None:
        """The segments and counts of the run's trainers, once one has attached."""
        return self._seat.port

    @property
    def trainer_waits(self) -> bool:
        """A trainer has asked to attach and is not let in yet, since the host is not ready."""
        return self._gate.connection is not None

    @property
    def outbox_closed(self) -> bool:
        """While true, nothing is taken from the trainer but by `drain_outbox`."""
        return self._seat.outbox_closed

    @outbox_closed.setter
    def outbox_closed(self, closed: bool) -> None:
        self._seat.outbox_closed = closed

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind and listen; UsageError if another daemon answers there or the socket cannot be made."""
        self._seat.start(loop)
        self._gate.start(loop)
        self._listener.start(loop)

    def close(self) -> None:
        """Let the trainer go, close everything, remove the socket file."""
        self._gate.close()
        self._seat.close()
        self._listener.close()

    def deliver(self, body: bytes | bytearray) -> None:
        """Hand a peer's UPDATE body to the trainer, if one is attached; never waits, never calls the host."""
        self._seat.deliver(body)

    def open_round(
        self, number: int, *, contributors: int, sums: int, adding_us: int, sending_us: int
    ) -> None:
        """In ring mode: the trainer, if one is attached, may give its share of this round; everything of the
        round before was delivered. What it is told beside stands in ring_buffer.py.
        """
        self._seat.open_round(
            number, contributors=contributors, sums=sums, adding_us=adding_us, sending_us=sending_us
        )

    def refuse_share(self, words: str) -> None:
        """In ring mode: let the trainer go, since what it gave does not fit; its link raises `words`."""
        self._seat.refuse_share(words)

    def share_numbers(self, segments: DenseSegments) -> None:
        """Of a dense ring: the memory that all its trainers get; before the first one attaches."""
        self._seat.dense = segments

    def restore(self, state: TrainerState) -> None:
        """The node's first trainer goes on from this state instead of from nothing; before it attaches.

        `residual` (P,) of the run that it will attach to. TrainerError if `script` is no state.
        """
        self._seat.restore(state)

    def request_state(self) -> None:
        """Ask for the trainer's state: `host.trainer_state` gets it, at once if no trainer is attached, else
        once the trainer is between two mini-batches or has gone. Asked again before that, it is given once;
        from this call on, the residual of the state before must not be used any more.
        """
        self._seat.want_state()

    def replica_replaced(self) -> None:
        """The replica is another one as a whole: the trainer takes it anew before its next mini-batch."""
        self._seat.want_reload()

    def readiness_changed(self) -> None:
        """What `host.ready` says may have changed: who waits to attach is let in, or told why not."""
        self._gate.look_soon()

    def finish(self) -> None:
        """Ask the trainer, or the next one if none is attached, to stop after its current mini-batch."""
        self._seat.finish()

    def pause_outbox(self, *, paused: bool) -> None:
        """Stop or go on taking the trainer's updates; it waits once its outbox is full."""
        self._seat.pause(paused=paused)

    def drain_outbox(self) -> None:
        """Take all that the trainer has published by now."""
        self._seat.drain()

    def trainer_status(self) -> dict[str, Any]:
        """What the node's status says about the trainer, and how many requests were refused."""
        status = {**self._seat.status(), "refused_requests": self._refused_requests}
        if self.trainer_waits:
            status["waits"] = self._host.ready()
        return status

    def _on_datagram(self, connection: Connection, datagram: Datagram) -> None:
        try:
            self._guard(connection, lambda: self._answer(connection, datagram))
        finally:
            close_descriptors(datagram.descriptors)

    def _guard(self, connection: Connection, work: Callable[[], None]) -> None:
        """Do what a connection asked for; what keeps that from being done becomes the answer."""
        try:
            work()
        except P2psgdError as error:
            self._count_refusal()
            self._send(connection, pack_refusal(str(error)))
        except (OSError, MemoryError) as error:
            words = (
                os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "out of memory"
            )
            self._count_refusal()
            self._send(connection, pack_refusal(f"the daemon cannot do that now: {words}"))

    def _on_close(self, connection: Connection) -> None:
        self._seat.lost(connection)
        self._gate.lost(connection)

    def _count_refusal(self) -> None:
        self._refused_requests += 1

    def _answer(self, connection: Connection, datagram: Datagram) -> None:
        if datagram.truncated:
            raise TrainerError("a datagram or its descriptors are larger than a request may be")
        match parse_request(datagram.data):
            case (
                StatusRequest() | CompressionRequest() | DigestRequest() | RemoveRequest() | MemberRequest()
            ) as question:
                self._send(connection, pack_answer(self._ask(question)))
            case ReplicaRequest():
                self._send_replica(connection)
            case FinishRequest():
                self.finish()
                self._host.asked_to_finish()
                self._send(connection, pack_answer({}))
            case AttachRequest() as request:
                self._attach(connection, request, datagram.descriptors)
            case ReloadRequest(differed=differed):
                self._check_attached(connection)
                self._reload(connection, differed=differed)
            case CompareRequest():
                self._check_attached(connection)
                self._compare(connection)
            case StateRequest() as request:
                self._check_attached(connection)
                self._take_state(connection, request, datagram.descriptors)
            case ReportRequest() as report:
                self._check_attached(connection)
                self._seat.report(report)
            case DetachRequest(finished=finished):
                self._check_attached(connection)
                self._seat.detach(finished=finished, kept=datagram.descriptors, answer=pack_answer({}))

    def _ask(
        self, question: StatusRequest | CompressionRequest | DigestRequest | RemoveRequest | MemberRequest
    ) -> dict[str, Any]:
        """What the host says; of a run only when one is known."""
        if not isinstance(question, StatusRequest | CompressionRequest):
            self._known_run()
        match question:
            case StatusRequest():
                return {"status": self._host.status()}
            case CompressionRequest():
                return {"compression": self._host.compression()}
            case DigestRequest(scrub=scrub):
                return {"digest": self._host.digest(scrub=scrub)}
            case RemoveRequest(node=node, forbid=forbid):
                return {"id": f"{self._host.remove(node, forbid=forbid):016x}"}
            case MemberRequest(id=node):
                return {"member": self._host.member(int(node, 16))}

    def _send(self, connection: Connection, data: bytes, descriptors: list[int] | None = None) -> bool:
        """Send an answer; a connection that cannot take it is closed, and the answer False."""
        if connection.send(data, descriptors or []):
            return True
        self._on_close(connection)
        self._listener.close_connection(connection)
        return False

    def _send_with_copy(self, connection: Connection, answer: dict[str, Any], descriptors: list[int]) -> bool:
        """Send an answer with a copy of the replica as its first descriptor."""
        packed = pack_answer(answer)
        copy = sealed_copy("p2psgd-weights", self._host.replica())
        try:
            return self._send(connection, packed, [copy, *descriptors])
        finally:
            os.close(copy)

    def _send_replica(self, connection: Connection) -> None:
        run = self._known_run()
        digest = self._host.replica_digest()
        answer = {
            "weights": run.weights,
            "mode": run.mode,
            "quantum_log2": run.quantum_log2,
            "tensors": run.tensors,
            "digest": digest,
        }
        self._send_with_copy(connection, answer, [])

    def _attach(self, connection: Connection, request: AttachRequest, descriptors: list[int]) -> None:
        if request.version != VERSION:
            raise TrainerError(
                f"this daemon speaks version {VERSION} of the control protocol, the trainer version"
                f" {request.version}: install one p2psgd for both"
            )
        for held in (self._seat.connection, self._gate.connection):
            if held is not None and held.has_closed():
                self._listener.settle(held)
        if self._seat.connection is not None:
            raise TrainerError(
                f"another trainer (pid {self._seat.pid}) is attached to this daemon: stop it first"
            )
        if self._gate.connection is not None:
            raise TrainerError(
                f"another trainer (pid {self._gate.pid}) waits to attach to this daemon: stop it first"
            )
        if request.run is not None:
            self._define_run(request.run.proposal(), descriptors)
        self._known_run()
        self._gate.hold(connection, connection.pid or request.pid)

    def _let_in(self, connection: Connection, pid: int) -> None:
        run = self._known_run()

        def hand_over(port: TrainerPort, segments: list[int]) -> bool:
            dense = self._seat.dense
            descriptors = [
                *segments,
                *([] if dense is None else dense.descriptors),
                *self._seat.script.descriptors,
            ]
            return self._send_with_copy(connection, self._describe_attachment(run, port), descriptors)

        def seat() -> None:
            if self._seat.prepare(run):
                self._seat.attach(connection, pid, hand_over)
            else:
                self._gate.hold_on(connection, pid)

        self._guard(connection, seat)

    def _define_run(self, proposal: RunProposal, descriptors: list[int]) -> None:
        if len(descriptors) != 1:
            raise TrainerError(f"a proposed run comes with one descriptor, not with {len(descriptors)}")
        coordinates = read_sealed_coordinates(descriptors[0], proposal.weights)
        if parse_mode(proposal.mode).dense:
            if not np.isfinite(coordinates.view(np.float32)).all():
                raise TrainerError("an initial weight is not finite")
        elif max(int(coordinates.max()), -int(coordinates.min())) > codec.COORDINATE_MAX:
            raise TrainerError(f"an initial coordinate is beyond +-{codec.COORDINATE_MAX}")
        self._host.define_run(proposal, coordinates)

    def _describe_attachment(self, run: RunProposal, port: TrainerPort) -> dict[str, Any]:
        return {
            "generation": port.generation + 1,
            "node": self._host.name(),
            "node_id": self._host.node_id(),
            "share": self._host.share(),
            "weights": run.weights,
            "quantum_log2": run.quantum_log2,
            "mode": run.mode,
            "tensors": run.tensors,
            "indices_max": codec.indices_max(run.weights),
            "inbox_bytes": port.inbox_bytes,
            "outbox_bytes": port.outbox_bytes,
            "mini_batches": port.mini_batches,
            "residual_age": port.residual_age,
            "peer_mini_batches": list(self._host.peer_mini_batches().items()),
        }

    def _reload(self, connection: Connection, *, differed: bool) -> None:
        inbox = self._seat.reload(differed=differed)
        if inbox is not None:
            counts = list(self._host.peer_mini_batches().items())
            self._send_with_copy(connection, {"inbox": inbox, "peer_mini_batches": counts}, [])

    def _compare(self, connection: Connection) -> None:
        found = self._seat.compare()
        if found is not None:
            inbox, digest = found
            self._send(
                connection, pack_answer({"inbox": inbox, "key": self._host.digest_key(), "digest": digest})
            )

    def _take_state(self, connection: Connection, request: StateRequest, descriptors: list[int]) -> None:
        if self._seat.take_state(request, descriptors):
            self._send(connection, pack_answer({}))

    def _known_run(self) -> RunProposal:
        run = self._host.run()
        if run is None:
            raise TrainerError("this daemon knows no run yet: attach a trainer with initial weights first")
        return run

    def _check_attached(self, connection: Connection) -> None:
        if connection is not self._seat.connection:
            raise TrainerError(
                "only the attached trainer may ask for this, and this connection is not attached"
            )
