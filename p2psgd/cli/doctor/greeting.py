"""Handshakes: the doctor dials each machine of the list once, and answers those that dial it meanwhile.

The doctor dials every peer with the HELLO of a doctor. A node answers with a REJECT that says which run it
trains; a doctor that runs there at the same time answers with its WELCOME. This doctor answers others in the
same way on its node's port. So two doctors have met when each has answered the other, and neither has to wait
for more. Bounded in time, in connections and in bytes; what others say is believed for the report only.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from p2psgd.net.address import Address, UnknownNameError, look_up
from p2psgd.net.admission import Handshakes, KnownHosts
from p2psgd.net.connection import Connection
from p2psgd.net.handshake import DOCTOR, check_certificate
from p2psgd.net.listen import BACKLOG
from p2psgd.net.rejections import DropCounters
from p2psgd.net.tls import Credentials
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import (
    FOREIGN_REJECT,
    PROTOCOL_VERSION,
    TEXT_MAX,
    Hello,
    OtherProtocolError,
    Reject,
    Welcome,
    pack_message,
    parse_message,
)
from p2psgd.wire.reject import TLS_CODES, PeerError, RejectCode

DIAL_TIMEOUT_S: Final = 4.0  # longer than the 3 s after which a LAN reports that a machine is off
DIALS_MAX: Final = 64  # at once
PAUSE_S: Final = 1.0  # between two dials of one address
ADDRESSES_MAX: Final = 8  # of one name
VISITORS_MAX: Final = 1024  # doctors and nodes that have dialled this doctor
USER_TIMEOUT_S: Final = 20.0

log = logging.getLogger("p2psgd.doctor")


class Outcome(enum.StrEnum):
    """The result of the last dial of an address."""

    UNTRIED = "untried"
    DOCTOR = "doctor"  # a doctor answers
    NODE = "node"  # a daemon does
    ITSELF = "itself"  # it is this doctor
    REFUSED = "refused"  # nothing listens there
    SILENT = "silent"  # no answer at all
    AWAY = "away"  # the network finds no such machine
    UNREACHABLE = "unreachable"  # this machine knows no way there
    UNRESOLVED = "unresolved"  # the name does not resolve
    TLS = "tls"  # one side does not accept the other's certificate, or speaks no TLS
    VERSION = "version"  # a p2psgd of another protocol
    STRANGE = "strange"  # something answers that is no p2psgd
    MUTE = "mute"  # something takes connections and says nothing: a node without a trainer yet does so


ANSWERED: Final = frozenset({Outcome.DOCTOR, Outcome.NODE, Outcome.ITSELF})
# These say more than that nothing answers any more, since the doctor there has ended.
_TELLING: Final = frozenset({Outcome.TLS, Outcome.VERSION, Outcome.STRANGE, Outcome.MUTE})
UNANSWERED: Final = frozenset({Outcome.REFUSED, Outcome.SILENT, Outcome.AWAY})
_NO_WAY: Final = frozenset(
    {errno.ENETUNREACH, errno.ENETDOWN, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}
)


@dataclass(slots=True)
class Peer:
    """A line of the list of hosts. `hosts` are the IP addresses that it leads to; `outcome` and `words` are
    those of the last dial; `visited`: the machine has dialled this one.
    """

    address: Address
    outcome: Outcome = Outcome.UNTRIED
    words: str = ""
    hosts: tuple[str, ...] = ()
    node: int | None = None
    name: str = ""
    visited: bool = False

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name else str(self.address)

    def failed(self, outcome: Outcome, words: str) -> None:
        """Note a dial that led nowhere."""
        if not (outcome in UNANSWERED and self.outcome in _TELLING):
            self.outcome, self.words = outcome, words[:200]

    def reached(self, message: Reject | Welcome, name: str) -> None:
        """Note who has answered; `name` is that of the certificate. PeerError if it refuses a doctor."""
        match message:
            case Welcome():
                self.outcome, self.words, name = Outcome.DOCTOR, "", message.name
            case Reject(code=RejectCode.SELF):
                self.outcome, self.words = Outcome.ITSELF, ""
            case Reject(code=RejectCode.DOCTOR):
                self.outcome, self.words = Outcome.NODE, str(message.to_error())
            case _:
                raise message.to_error()
        self.node, self.name = message.node, name

    def describe(self) -> dict[str, Any]:
        """Describe it for machines; `reaches_this` is None if that is not known."""
        return {
            "address": str(self.address),
            "hosts": list(self.hosts),
            "name": self.name,
            "outcome": self.outcome.value,
            "words": self.words,
            "reaches_this": self.visited or (False if self.outcome is Outcome.DOCTOR else None),
        }


class _Dial(NamedTuple):
    """A connection to a peer, and what is settled when the HELLO on it was answered."""

    peer: Peer
    over: asyncio.Future[None]


def doctor_hello(node: int, name: str) -> Hello:
    """Make the HELLO of a doctor, of no run."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        node=node,
        incarnation=0,
        name=name,
        run=bytes(32),
        weights=1,
        quantum_log2=0,
        mode=DOCTOR,
        label="",
        rank="",
    )


class Greeter:
    """Greets all `peers` with `hello`, and answers those that dial."""

    def __init__(self, peers: Sequence[Address], hello: Hello, credentials: Credentials | None) -> None:
        self.peers = [Peer(address) for address in peers]
        self.hello = hello
        self.visitors: dict[int, tuple[str, str]] = {}  # by node id: from which host, and who it is
        self.dropped = DropCounters()
        self._credentials = credentials
        known_hosts = KnownHosts(lambda: (host for peer in self.peers for host in peer.hosts))
        self._greetings: Handshakes[_Dial | object] = Handshakes(self.dropped, known_hosts, self._forget)
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._changed = asyncio.Event()

    async def greet(self, listening: socket.socket | None, *, wait_s: float) -> None:
        """Meet all peers that come within `wait_s`; without a socket this doctor only dials."""
        loop = asyncio.get_running_loop()
        server: asyncio.Server | None = None
        if listening is not None:
            server = await loop.create_server(
                lambda: self._connection(dialled=False), sock=listening, backlog=BACKLOG
            )
        dialling = [loop.create_task(self._seek(peer)) for peer in self.peers]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not self._all_met(listens=server is not None):
                        self._changed.clear()
                        await self._changed.wait()
        finally:
            for task in dialling:
                task.cancel()
            await asyncio.gather(*dialling, return_exceptions=True)
            self._greetings.close()
            if server is not None:
                server.close()
            for connection in self._greetings:
                connection.abort("this doctor ended")

    def _all_met(self, *, listens: bool) -> bool:
        """Note which peers have dialled this machine; return whether all is known of all of them."""
        nodes = {peer.node for peer in self.peers}
        for peer in self.peers:
            peer.visited = any(
                node == peer.node or (node not in nodes and host in peer.hosts)
                for node, (host, _) in self.visitors.items()
            )
        return all(
            peer.outcome in ANSWERED and (peer.visited or not listens or peer.outcome is not Outcome.DOCTOR)
            for peer in self.peers
        )

    async def _seek(self, peer: Peer) -> None:
        """Dial one line until somebody answers there."""
        while peer.outcome not in ANSWERED:
            async with self._dials:
                await self._dial_line(peer)
            self._changed.set()
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))

    async def _dial_line(self, peer: Peer) -> None:
        """Greet by the first of its addresses at which somebody answers."""
        failure: BaseException | None = None
        try:
            found = await look_up(peer.address, timeout_s=DIAL_TIMEOUT_S)
            peer.hosts = tuple(each.host for each in found)[:ADDRESSES_MAX]
        except UnknownNameError as error:
            failure = error
        for host in peer.hosts:
            try:
                await self._dial(peer, host)
            except (OSError, TimeoutError, PeerError) as error:
                failure = error
            else:
                return
        assert failure is not None
        peer.failed(*judge_failure(failure))

    async def _dial(self, peer: Peer, host: str) -> None:
        loop = asyncio.get_running_loop()
        port = peer.address.port
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            _, connection = await loop.create_connection(lambda: self._connection(dialled=True), host, port)
        dial = _Dial(peer, loop.create_future())
        self._greetings.begin(connection, dial)
        connection.send(pack_message(self.hello))
        try:
            await dial.over
        except asyncio.CancelledError:
            connection.abort("this doctor ended")
            raise

    # -- ConnectionOwner

    def _connection(self, *, dialled: bool) -> Connection:
        tls = None if self._credentials is None else self._credentials.context(dialled=dialled)
        return Connection(self, dialled=dialled, user_timeout_s=USER_TIMEOUT_S, tls=tls)

    def connection_made(self, connection: Connection) -> None:
        if not connection.dialled:  # else `_dial` greets
            self._greetings.begin(connection, object())

    def frame_received(self, connection: Connection, frame_type: FrameType, body: Body) -> None:
        greeting = self._greetings.get(connection)
        if greeting is None:
            return
        try:
            message = parse_message(frame_type, body)
        except OtherProtocolError as error:
            if connection.dialled:
                raise
            doctor = error.mode == DOCTOR
            if error.node:
                self._note_visitor(connection, error.node, error.name, doctor=doctor)
            if doctor:
                raise
            raise PeerError(RejectCode.DOCTOR, str(error)) from None  # a node ends if all answer "protocol"
        match message:
            case Reject() if message == FOREIGN_REJECT and connection.dialled:
                raise PeerError(RejectCode.PROTOCOL, message.details)
            case Reject() | Welcome() if isinstance(greeting, _Dial):
                greeting.peer.reached(message, self._check(connection, message))
                greeting.over.set_result(None)
            case Hello() if not connection.dialled and not isinstance(message, Welcome):
                self._check(connection, message)
                self._visited(connection, message)
                connection.send(pack_message(Welcome(**self.hello.model_dump())))
            case _:
                raise PeerError(RejectCode.FRAME_ORDER, f"a {frame_type.name} is not what comes first here")
        self._greetings.end(connection)
        connection.close("greeted")

    def peer_failed(self, connection: Connection, error: PeerError) -> None:
        if error.code not in (RejectCode.DOCTOR, RejectCode.SELF):
            self.dropped.count(error.label)
            log.warning("dropped %s: %s: %s", connection.address, error.label, error)
        if not connection.dialled:
            details = error.details[:TEXT_MAX]
            reject = Reject(node=self.hello.node, code=error.code, details=details, incarnation=0)
            connection.send(pack_message(reject))
        connection.close(str(error))
        self._forget(connection, error)

    def connection_drained(self, connection: Connection) -> None:
        pass

    def connection_lost(self, connection: Connection, words: str) -> None:
        self._forget(connection, ConnectionAbortedError(words))

    def _forget(self, connection: Connection, error: Exception) -> None:
        greeting = self._greetings.end(connection)
        if isinstance(greeting, _Dial) and not greeting.over.done():
            greeting.over.set_exception(error)

    def _check(self, connection: Connection, message: Hello | Reject) -> str:
        """Return the name in the peer's certificate; PeerError if that names another node than it says."""
        certified = connection.certified
        if certified is None:
            return ""
        if isinstance(message, Hello):
            check_certificate(certified, message)
        elif message.node != certified.node:
            words = f"it says that it is {message.node:016x}, with the certificate of {certified.name}"
            raise PeerError(RejectCode.CERTIFICATE, words)
        return certified.name

    def _visited(self, connection: Connection, theirs: Hello) -> None:
        """Note who dials this doctor; PeerError unless it is a doctor that can be met."""
        doctor = theirs.mode == DOCTOR
        if doctor and theirs.node == self.hello.node:
            raise PeerError(RejectCode.SELF)
        self._note_visitor(connection, theirs.node, theirs.name, doctor=doctor)
        if not doctor:
            raise PeerError(RejectCode.DOCTOR, f"`p2psgd doctor` runs on {self.hello.name}, and no node yet")

    def _note_visitor(self, connection: Connection, node: int, name: str, *, doctor: bool) -> None:
        if node in self.visitors or len(self.visitors) < VISITORS_MAX:
            who = f"the {'doctor of' if doctor else 'node'} {name}"
            self.visitors[node] = connection.host, who
            self._changed.set()


def judge_failure(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome and a few words for what a dial raised."""
    words = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    match error:
        case TimeoutError():
            words = "no answer" if error.errno else f"no answer within {DIAL_TIMEOUT_S:g} s"
            outcome = Outcome.SILENT
        case ConnectionRefusedError():
            outcome, words = Outcome.REFUSED, "connection refused"
        case UnknownNameError():
            outcome = Outcome.UNRESOLVED
        case PeerError(code=RejectCode.SILENT):
            outcome, words = Outcome.MUTE, "something listens there, but says nothing"
        case PeerError(code=RejectCode.PROTOCOL):
            outcome, words = Outcome.VERSION, str(error)
        case PeerError(code=code):
            outcome, words = Outcome.TLS if code in TLS_CODES else Outcome.STRANGE, str(error)
        case ConnectionAbortedError():
            outcome, words = Outcome.STRANGE, str(error)
        case OSError(errno=errno.EHOSTUNREACH):
            outcome, words = Outcome.AWAY, "no such machine answers (no route to host)"
        case OSError() if error.errno in _NO_WAY:
            outcome = Outcome.UNREACHABLE
        case _:
            outcome, words = Outcome.STRANGE, f"the connection failed: {words}"
    return outcome, words
