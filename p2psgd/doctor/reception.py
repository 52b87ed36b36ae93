"""A doctor's connections until they are sessions: listening, dialling, greeting; and every refusal counted.

A node that dials is told that a doctor runs here, and tries again later as it does when nothing listens.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final, Protocol

from p2psgd.doctor.session import Session
from p2psgd.errors import PeerError
from p2psgd.net.connection import Connection
from p2psgd.net.greeting import DOCTOR, check_certificate
from p2psgd.net.greetings import Greetings
from p2psgd.net.known_hosts import KnownHosts
from p2psgd.net.listening import BACKLOG
from p2psgd.net.reasons import Reasons
from p2psgd.tls.credentials import Credentials
from p2psgd.wire.frames import DOCTOR_LIMITS, Body, FrameType
from p2psgd.wire.messages import (
    PROTOCOL_VERSION,
    WORDS_MAX,
    Hello,
    Reject,
    Welcome,
    pack_message,
    parse_message,
)

USER_TIMEOUT_S: Final = 20.0

log = logging.getLogger("p2psgd.doctor")


class ReceptionHost(Protocol):
    """Who decides about sessions."""

    def open_session(self, connection: Connection, theirs: Hello) -> Session: ...  # PeerError: no more
    def node_heard(self, address: str, theirs: Hello) -> None: ...  # a node has dialled this doctor


class Reception:
    """`hello` is what this doctor says first; the `known_hosts` are let in first."""

    def __init__(
        self,
        host: ReceptionHost,
        hello: Hello,
        credentials: Credentials | None,
        known_hosts: KnownHosts,
    ) -> None:
        self.dropped = Reasons()
        self._known_hosts = known_hosts
        self._host, self._hello, self._credentials = host, hello, credentials
        # of each connection what a dial of it waits for
        self._greetings: Greetings[asyncio.Future[Session | Reject]] = Greetings(
            self.dropped, known_hosts, self._forget
        )
        self._sessions: dict[Connection, Session] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, listening: socket.socket) -> None:
        """Accept on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self._connection(dialled=False), sock=listening, backlog=BACKLOG
        )

    async def dial(self, host: str, port: int, *, timeout_s: float) -> Session | Reject:
        """What answers there. OSError, TimeoutError or PeerError if that is nothing, or nothing of ours."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(lambda: self._connection(dialled=True), host, port)
        answer: asyncio.Future[Session | Reject] = loop.create_future()
        self._greetings.begin(connection, answer)
        connection.send(pack_message(self._hello))
        try:
            return await answer
        except asyncio.CancelledError:
            connection.abort("this doctor ended")
            raise

    async def close(self) -> None:
        """Close every connection after what was sent has left."""
        self._greetings.close()
        if self._server is not None:
            self._server.close()
        for connection in [*self._greetings, *self._sessions]:
            connection.finish("this doctor ended")
        sessions = [session.over for session in self._sessions.values()]
        if sessions:
            await asyncio.wait(sessions, timeout=1.0)
        for connection in [*self._greetings, *self._sessions]:
            connection.abort("this doctor ended")

    # -- ConnectionOwner

    def connection_made(self, connection: Connection) -> None:
        if not connection.dialled:  # else `dial` greets
            self._greetings.begin(connection, asyncio.get_running_loop().create_future())

    def frame_received(self, connection: Connection, frame_type: FrameType, body: Body) -> None:
        session = self._sessions.get(connection)
        if session is not None:
            session.receive(body)  # by the limits nothing but DOCTOR comes
            return
        if self._greetings.get(connection) is None:
            return
        message = parse_message(frame_type, body)
        match message:
            case Reject() if connection.dialled:
                self._settle(connection, message)
                connection.close(message.words)
            case Welcome() if connection.dialled:
                if not _of_doctor(message):
                    raise PeerError("frame order", "a WELCOME of no doctor")
                self._open(connection, message)
            case Hello() if not connection.dialled and not isinstance(message, Welcome):
                self._greeted(connection, message)
            case _:
                raise PeerError("frame order", f"a {frame_type.name} is not what comes first here")

    def peer_failed(self, connection: Connection, error: PeerError) -> None:
        self.dropped.count(error.reason)
        if connection in self._sessions:
            log.warning("dropped %s: %s: %s", connection.address, error.reason, error)
        elif not connection.dialled:
            self._reject(connection, error.reason, str(error))
        connection.close(str(error))
        self._forget(connection, error)

    def connection_drained(self, connection: Connection) -> None:
        session = self._sessions.get(connection)
        if session is not None:
            session.drained()

    def connection_lost(self, connection: Connection, words: str) -> None:
        self._forget(connection, PeerError("closed", words))

    # -- greetings

    def _connection(self, *, dialled: bool) -> Connection:
        tls = None if self._credentials is None else self._credentials.context(dialled=dialled)
        return Connection(self, dialled=dialled, user_timeout_s=USER_TIMEOUT_S, tls=tls)

    def _greeted(self, connection: Connection, theirs: Hello) -> None:
        """HELLO has come."""
        self._check(connection, theirs)
        if theirs.node == self._hello.node and _of_doctor(theirs):
            raise PeerError("self", "this is the doctor itself")
        if theirs.protocol != PROTOCOL_VERSION:
            words = (
                f"protocol {theirs.protocol} there, {PROTOCOL_VERSION} here: install the same p2psgd on both"
            )
            # a node that is told so by all would end
            raise PeerError("protocol" if _of_doctor(theirs) else DOCTOR, words)
        if not _of_doctor(theirs):
            self._host.node_heard(connection.address, theirs)
            raise PeerError(DOCTOR, f"`p2psgd doctor` runs on {self._hello.name}, and no node yet")
        self._open(connection, theirs)

    def _open(self, connection: Connection, theirs: Hello) -> None:
        self._check(connection, theirs)
        session = self._host.open_session(connection, theirs)
        if not connection.dialled:
            connection.send(pack_message(Welcome(**self._hello.model_dump())))
        connection.open(DOCTOR_LIMITS)
        self._known_hosts.linked(connection.host)
        self._sessions[connection] = session
        session.begin()
        self._settle(connection, session)

    def _check(self, connection: Connection, theirs: Hello) -> None:
        if connection.certified is not None:
            check_certificate(connection.certified, theirs)

    def _reject(self, connection: Connection, code: str, words: str) -> None:
        reject = Reject(node=self._hello.node, code=code, words=words[:WORDS_MAX], incarnation=0)
        connection.send(pack_message(reject))

    def _settle(self, connection: Connection, outcome: Session | Reject) -> None:
        answer = self._greetings.end(connection)
        if answer is not None and not answer.done():
            answer.set_result(outcome)

    def _forget(self, connection: Connection, error: PeerError) -> None:
        answer = self._greetings.end(connection)
        if answer is not None and not answer.done() and connection.dialled:
            answer.set_exception(error)
        session = self._sessions.pop(connection, None)
        if session is not None:
            session.end(str(error))


def _of_doctor(hello: Hello) -> bool:
    return hello.mode.partition(" ")[0] == DOCTOR
