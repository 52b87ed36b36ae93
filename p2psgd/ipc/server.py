"""The server of the control socket: what each request gets for an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.listener import Connection, Listener
from p2psgd.ipc.protocol import (
    VERSION,
    AttachRequest,
    CompareRequest,
    CompressionRequest,
    Datagram,
    DetachRequest,
    DigestRequest,
    EvaluateRequest,
    FinishRequest,
    MemberRequest,
    ReloadRequest,
    RemoveRequest,
    ReplicaRequest,
    ReportRequest,
    StateRequest,
    StatusRequest,
    ViewRankRequest,
    close_descriptors,
    pack_answer,
    parse_request,
)
from p2psgd.ipc.run_proposal import RunProposal
from p2psgd.ipc.segments import read_sealed_coordinates
from p2psgd.ipc.tensor_table import pack_tensors
from p2psgd.ipc.trainer_session import SessionHost, TrainerSession
from p2psgd.wire import codec
from p2psgd.wire.messages import Fields
from p2psgd.wire.mode import parse_mode


class ControlHost(SessionHost, Protocol):
    """The daemon, as its control server sees it. All calls happen on the loop and return at once."""

    def status(self) -> Fields:
        """Return what `p2psgd status` shows, in types that MessagePack knows."""

    def compression(self) -> Fields:
        """Return how the own updates compress, tensor by tensor, in types that MessagePack knows."""

    def replica(self) -> NDArray[np.int32]:
        """The live replica, int32 (C,): copied before control returns to the loop."""

    def replica_digest(self) -> int:
        """The digest of the live replica."""

    def digest(self, *, scrub: bool) -> Fields:
        """Return what `p2psgd digest` shows (observe/digest.py); `scrub`: begin one now, if none is running.

        Called only when a run is known.
        """

    def remove(self, node: str, *, forbid: bool) -> int:
        """Ask for a view without this node, by name or id, unless the latest is without it already; return
        its id. UsageError if that cannot be.

        Called only when a run is known.
        """

    def member(self, node: int) -> Fields:
        """Return the state of a node in the latest view (node/removal.py).

        Called only when a run is known.
        """

    def view_rank(self) -> tuple[int, int]:
        """Return this node's place among the members of the latest view, and their number.

        Called only when a run is known.
        """

    def define_run(self, proposal: RunProposal, coordinates: NDArray[np.int32]) -> None:
        """Take on this run; P2psgdError with both fingerprints if another one is known already."""

    def asked_to_finish(self) -> None:
        """Note that somebody wants the training to end; the trainer has its notice."""


# ----------------------------------------------------------------------------
# Runs on the daemon's loop by plain readers (asyncio and uvloop alike); no callback waits. Whatever comes in
# is checked by protocol.py first; a bad request gets an answer, is counted, and changes nothing. The
# trainer's part is trainer_session.py, decisions about the run are the host's.


class ControlServer:
    """The control socket at `path`; `session` is the trainer behind it.

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
        )
        self.session = TrainerSession(
            host, self._listener, inbox_bytes=inbox_bytes, outbox_bytes=outbox_bytes
        )
        self._listener.on_close = self.session.lost

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind and listen; UsageError if another daemon answers there or the socket cannot be made."""
        self.session.start(loop)
        self._listener.start(loop)

    def close(self) -> None:
        """Let the trainer go, close everything, remove the socket file."""
        self.session.close()
        self._listener.close()

    def _on_datagram(self, connection: Connection, datagram: Datagram) -> None:
        try:
            self._listener.guard(connection, lambda: self._answer(connection, datagram))
        finally:
            close_descriptors(datagram.descriptors)

    def _answer(self, connection: Connection, datagram: Datagram) -> None:
        if datagram.truncated:
            raise TrainerError("a datagram or its descriptors are larger than a request may be")
        match parse_request(datagram.data):
            case (
                StatusRequest()
                | CompressionRequest()
                | DigestRequest()
                | RemoveRequest()
                | MemberRequest()
                | ViewRankRequest()
            ) as question:
                self._listener.send(connection, pack_answer(self._ask(question)))
            case ReplicaRequest():
                self._send_replica(connection)
            case FinishRequest():
                self.session.finish()
                self._host.asked_to_finish()
                self._listener.send(connection, pack_answer({}))
            case AttachRequest() as request:
                self._attach(connection, request, datagram.descriptors)
            case (
                ReloadRequest()
                | CompareRequest()
                | StateRequest()
                | ReportRequest()
                | EvaluateRequest()
                | DetachRequest()
            ) as request:
                if self.session.attachment is None or connection is not self.session.connection:
                    raise TrainerError(
                        "only the attached trainer may ask for this, and this connection is not attached"
                    )
                self._serve_trainer(connection, request, datagram.descriptors)

    def _ask(
        self,
        question: StatusRequest
        | CompressionRequest
        | DigestRequest
        | RemoveRequest
        | MemberRequest
        | ViewRankRequest,
    ) -> Fields:
        """Return the host's answer; a question about the run only when a run is known."""
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
            case ViewRankRequest():
                rank, world_size = self._host.view_rank()
                return {"rank": rank, "world_size": world_size}

    def _serve_trainer(
        self,
        connection: Connection,
        request: ReloadRequest
        | CompareRequest
        | StateRequest
        | ReportRequest
        | EvaluateRequest
        | DetachRequest,
        descriptors: list[int],
    ) -> None:
        """Answer the attached trainer; one that had to be refused meanwhile has got its last words."""
        match request:
            case ReloadRequest():
                if (answer := self.session.reload(request)) is not None:
                    self.session.send_weights(connection, answer)
            case CompareRequest():
                if (answer := self.session.compare()) is not None:
                    self._listener.send(connection, pack_answer(answer))
            case StateRequest():
                if self.session.take_state(request, descriptors):
                    self._listener.send(connection, pack_answer({}))
            case ReportRequest():
                self.session.report(request)
            case EvaluateRequest():
                self.session.evaluate(request)
            case DetachRequest():
                self.session.detach(request, descriptors)

    def _send_replica(self, connection: Connection) -> None:
        run = self._known_run()
        answer = {
            "weights": run.weights,
            "coordinates": run.coordinates,
            "mode": run.mode,
            "quantum_log2": run.quantum_log2,
            "tensors": pack_tensors(run.tensors),
            "digest": self._host.replica_digest(),
        }
        replica = self._host.replica()
        self.session.send_weights(connection, answer, self.session.script.descriptors, weights=replica)

    def _attach(self, connection: Connection, request: AttachRequest, descriptors: list[int]) -> None:
        if request.version != VERSION:
            raise TrainerError(
                f"this daemon speaks version {VERSION} of the control protocol, the trainer version"
                f" {request.version}: install one p2psgd for both"
            )
        self.session.check_free()
        if request.run is not None:
            self._define_run(request.run.proposal(), descriptors)
        self._known_run()
        self.session.request_attach(connection, connection.pid or request.pid)

    def _define_run(self, proposal: RunProposal, descriptors: list[int]) -> None:
        if len(descriptors) != 1:
            raise TrainerError(f"a proposed run comes with one descriptor, not with {len(descriptors)}")
        coordinates = read_sealed_coordinates(descriptors[0], proposal.coordinates)
        if parse_mode(proposal.mode).dense:
            if not np.isfinite(coordinates.view(np.float32)).all():
                raise TrainerError("an initial weight is not finite")
        elif max(int(coordinates.max()), -int(coordinates.min())) > codec.COORDINATE_MAX:
            raise TrainerError(f"an initial coordinate is beyond +-{codec.COORDINATE_MAX}")
        self._host.define_run(proposal, coordinates)

    def _known_run(self) -> RunProposal:
        run = self._host.run()
        if run is None:
            raise TrainerError("this daemon knows no run yet: attach a trainer with initial weights first")
        return run
