"""The mesh: at most one link to each peer, and what it asks of its host."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from p2psgd.base.aio import describe_shortage, has_room, raise_failure
from p2psgd.core.frontier import Origin
from p2psgd.net.address import Address
from p2psgd.net.admission import HANDSHAKE_TIMEOUT_S, Handshakes, KnownHosts
from p2psgd.net.connection import Connection
from p2psgd.net.dialer import AddressDialer, Dialer, describe_failure
from p2psgd.net.handshake import (
    BehindError,
    ForeignNodes,
    behind,
    check_hello,
    newer_stays,
)
from p2psgd.net.listen import BACKLOG, accept_on
from p2psgd.net.rejections import DropCounters, DropLog
from p2psgd.net.tls import Credentials
from p2psgd.wire.frames import Body, FrameType, link_limits
from p2psgd.wire.messages import (
    TEXT_MAX,
    Hello,
    OtherProtocolError,
    Reject,
    Welcome,
    pack_message,
    parse_message,
)
from p2psgd.wire.reject import INCARNATION_CODES, PeerError, RejectCode

# ----------------------------------------------------------------------------
# What a mesh asks of its host, the owner of its links.


class MeshHost(Protocol):
    """The owner of a mesh's links, which is called with what happens to them."""

    def link_opened(self, peer: Origin, name: str) -> None: ...
    def link_replaced(self, peer: Origin, name: str) -> None: ...  # by another connection to the same life
    def link_closed(self, peer: Origin, words: str) -> None: ...
    def link_drained(self, peer: Origin) -> None: ...
    def frame_received(self, peer: Origin, frame_type: FrameType, body: Body) -> None: ...
    def peers_received(self, peer: Origin, body: Body) -> None: ...
    def refused_by_peer(self, code: RejectCode, words: str, newest: int, *, listed: bool) -> None: ...
    def member_incarnation(self, node: int) -> int | None: ...  # of its life in the view
    def alarm(self, words: str) -> None: ...
    def stranger_met(self, node: int, words: str) -> None: ...  # of another run; said once


# ----------------------------------------------------------------------------
# The mesh: a listener, a dialer for each address, and at most one link to each peer.
#
# Turns connections into links (greeting, duplicates, deadlines, caps) and reports that to its host; what
# travels on a link is the host's business. Every refusal is counted by its reason. A dead link is dialled
# again.


LINKS_MAX: Final = 1023
NEWS_MAX: Final = 4096  # nodes that are remembered; at most 1,023 of them are linked, and 1,024 members
SHORTAGE_ALARM_S: Final = 3600.0  # between two alarms of descriptors that are short: anybody can cause them

STARTED_AGAIN: Final = "its node has been started again"

log = logging.getLogger("p2psgd.net")


@dataclass(slots=True)
class Link:
    """A connection whose both sides have accepted each other."""

    peer: Origin
    name: str
    rank: str  # as it says: i/n, or ""
    connection: Connection
    since: float
    closed: asyncio.Future[None]


@dataclass(slots=True)
class _Handshake:
    """A connection before it is a link."""

    dialler: AddressDialer | None
    over: asyncio.Future[None]


@dataclass(slots=True)
class PeerNews:
    """The facts about a peer that outlast its link, for people."""

    name: str
    address: str
    since: float
    words: str = ""
    incarnation: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass
class Mesh:
    """The connections of one node; `start` when the run is known. In plaintext without `credentials`."""

    host: MeshHost
    greeting: Hello
    coordinates: int  # of the run: what bounds the frames of a link
    failure_timeout_s: float
    now: Callable[[], float]
    credentials: Credentials | None = None
    links: dict[int, Link] = field(default_factory=dict)
    news: dict[int, PeerNews] = field(default_factory=dict)
    dialer: Dialer = field(init=False)
    dropped: DropCounters = field(default_factory=DropCounters)
    doctors: int = 0  # that have asked, and were answered
    strangers: ForeignNodes = field(init=False)
    known_hosts: KnownHosts = field(init=False)
    _past_sent: int = 0  # on links of nodes that are no longer in `news`,
    _past_received: int = 0  # and what came on them
    _drop_log: DropLog = field(default_factory=DropLog)
    _handshakes: Handshakes[_Handshake] = field(init=False)
    _by_connection: dict[Connection, Link] = field(default_factory=dict)
    _accepting: asyncio.Task[None] | None = None
    _listening: socket.socket | None = None
    _shortage_told: float = -math.inf

    def __post_init__(self) -> None:
        self.strangers = ForeignNodes(self.host.stranger_met)
        self.known_hosts = KnownHosts(lambda: self.dialer.listed)
        self._handshakes = Handshakes(
            self.dropped, self.known_hosts, lambda given_up, error: self._forget(given_up, str(error))
        )
        self.dialer = Dialer(
            failure_timeout_s=self.failure_timeout_s, now=self.now, dial=self._dial, linked=self._linked
        )

    async def start(
        self,
        listening: socket.socket,
        peers: Sequence[Address],
        *,
        counts: Mapping[Address, int] | None = None,
        advertised: Address | None = None,
    ) -> None:
        """Accept on a bound socket, which is the mesh's from now on, and dial `peers`; `counts` as in
        `Hosts`; `advertised` is this node.
        """
        listening.listen(BACKLOG)
        self._listening = listening
        make = partial(self._connection, dialled=False)
        accepting = accept_on(listening, make, refused=self._short_of_descriptors)
        self._accepting = asyncio.get_running_loop().create_task(accepting, name="accepting")
        self._accepting.add_done_callback(raise_failure)
        host, port = listening.getsockname()[:2]
        self.dialer.own = (Address(host, port), *([] if advertised is None else [advertised]))
        self.dialer.follow(peers, counts or {})

    async def close(self) -> None:
        """Close every connection after what was sent has left, within one failure timeout."""
        self._handshakes.close()
        await self.dialer.close()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        if self._listening is not None:
            self._listening.close()
        links = list(self.links.values())
        for connection in self._handshakes:
            connection.close("this node stopped")
        for connection in self._by_connection:
            connection.finish("this node stopped")
        if links:
            await asyncio.wait([link.closed for link in links], timeout=self.failure_timeout_s)
        for connection in [*self._handshakes, *self._by_connection]:
            connection.abort("this node stopped")

    # -- what the host orders

    def send(self, peer: Origin, frame: bytes) -> None:
        """Send a frame on the peer's link; without a link it is dropped, for the log still holds what
        matters.
        """
        link = self._link(peer)
        if link is not None:
            link.connection.send(frame)

    def send_floats(self, peer: Origin, head: bytes, numbers: memoryview) -> None:
        """Send a frame whose last part is `numbers`, bytes that stay as they are until they were sent."""
        link = self._link(peer)
        if link is not None:
            link.connection.send_floats(head, numbers)

    def takes_more(self, peer: Origin) -> bool:
        """Return whether the peer is linked, and what it was sent is not piling up here."""
        link = self._link(peer)
        return link is not None and link.connection.writable

    def unsent_bytes(self, peer: Origin) -> int:
        """Return how much of what the peer was sent has not left this machine; 0 if it is not linked."""
        link = self._link(peer)
        return 0 if link is None else link.connection.unsent_bytes

    def report_drained(self, peer: Origin) -> None:
        """Call link_drained when what was sent so far has left our memory."""
        link = self._link(peer)
        if link is not None:
            link.connection.report_drained()

    def drop(self, peer: Origin, code: RejectCode, details: str) -> None:
        """Close the link to a peer that broke the protocol, and count why."""
        link = self._link(peer)
        if link is not None:
            self.peer_failed(link.connection, PeerError(code, details))

    def drop_former_incarnations(self, incarnations: Mapping[int, int]) -> None:
        """Close the links to incarnations that are older than those in `incarnations`, by node, and send them
        that reason.
        """
        for node, link in list(self.links.items()):
            newest = incarnations.get(node, 0)
            if link.peer.incarnation < newest:
                self.peer_failed(link.connection, behind(link.name, link.peer.incarnation, newest))

    @property
    def bytes_sent(self) -> int:
        """Return the bytes handed to the sockets of all links, past ones included."""
        past = self._past_sent + sum(news.bytes_sent for news in self.news.values())
        return past + sum(connection.bytes_sent for connection in self._by_connection)

    @property
    def bytes_received(self) -> int:
        """Return the bytes that came on all links, past ones included."""
        past = self._past_received + sum(news.bytes_received for news in self.news.values())
        return past + sum(connection.bytes_received for connection in self._by_connection)

    # -- connections: ConnectionOwner

    def connection_made(self, connection: Connection) -> None:
        if not connection.dialled:  # else _dial greets
            self._await_greeting(connection, dialler=None)

    def frame_received(self, connection: Connection, frame_type: FrameType, body: Body) -> None:
        link = self._by_connection.get(connection)
        if link is not None:
            if frame_type is FrameType.REJECT:
                self._rejected(parse_message(frame_type, body), None, connection)
            elif frame_type is FrameType.PEERS:
                self.host.peers_received(link.peer, body)
            else:
                self.host.frame_received(link.peer, frame_type, body)
            return
        greeting = self._handshakes.get(connection)
        if greeting is None:
            return
        try:
            message = parse_message(frame_type, body)
        except OtherProtocolError as error:
            if greeting.dialler is not None:
                self._note_refusal(greeting.dialler, error.node, error)
            raise
        match message:
            case Welcome() if connection.dialled:
                self._greeted(connection, greeting, message)
            case Hello() if not connection.dialled and not isinstance(message, Welcome):
                self._greeted(connection, greeting, message)
            case Reject() if connection.dialled:
                self._rejected(message, greeting.dialler, connection)
            case _:
                raise PeerError(RejectCode.FRAME_ORDER, f"a {frame_type.name} is not what comes first here")

    def peer_failed(self, connection: Connection, error: PeerError) -> None:
        if error.code is RejectCode.DOCTOR:
            self.doctors += 1
            self._drop_log.looked_at(connection.address, error, self.now())
        else:
            self.dropped.count(error.label)
            self._drop_log.dropped(self._describe(connection), error, self.now())
        greeting = self._handshakes.get(connection)
        if greeting is not None and greeting.dialler is not None:
            greeting.dialler.words = str(error)
        self._send_reject(connection, error)
        connection.close(str(error))
        self._forget(connection, str(error))

    def connection_drained(self, connection: Connection) -> None:
        link = self._by_connection.get(connection)
        if link is not None:
            self.host.link_drained(link.peer)

    def connection_lost(self, connection: Connection, words: str) -> None:
        self._forget(connection, words)

    # -- greetings

    def _short_of_descriptors(self, newcomer: str) -> None:
        """Count a refused connection from this host, alarm people once an hour at most, and close one of
        a crowd's connections for the next.
        """
        self.dropped.count("descriptors")
        if self.now() - self._shortage_told >= SHORTAGE_ALARM_S:
            self._shortage_told = self.now()
            self.host.alarm(describe_shortage())
        self._handshakes.displace(newcomer)

    def _connection(self, *, dialled: bool) -> Connection:
        tls = None if self.credentials is None else self.credentials.context(dialled=dialled)
        return Connection(self, dialled=dialled, user_timeout_s=4 * self.failure_timeout_s, tls=tls)

    def _await_greeting(self, connection: Connection, *, dialler: AddressDialer | None) -> _Handshake:
        greeting = _Handshake(dialler, asyncio.get_running_loop().create_future())
        self._handshakes.begin(connection, greeting)
        return greeting

    async def _dial(self, dialler: AddressDialer, address: Address) -> None:
        loop = asyncio.get_running_loop()
        if not has_room():
            dialler.words = "this node has no descriptor left to dial with"
            return
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: self._connection(dialled=True), address.host, address.port
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            dialler.words = describe_failure(error, HANDSHAKE_TIMEOUT_S, before=dialler.was_linked)
            return
        greeting = self._await_greeting(connection, dialler=dialler)
        connection.send(pack_message(self.greeting))
        try:
            await asyncio.shield(greeting.over)  # cancelled, it could not be settled by what comes
        except asyncio.CancelledError:
            if not greeting.over.done():
                connection.abort("it is no longer dialled")
            raise

    def _newest(self, node: int) -> int:
        """Return the highest incarnation known of a node: that of the view, whatever was linked before, or
        without one that of its last link.
        """
        member = self.host.member_incarnation(node)
        if member is not None:
            return member
        news = self.news.get(node)
        return 0 if news is None else news.incarnation

    def _greeted(self, connection: Connection, greeting: _Handshake, theirs: Hello) -> None:
        held = self.links.get(theirs.node)
        linked = 0 if held is None else held.peer.incarnation
        try:
            newest = self._newest(theirs.node)
            check_hello(self.greeting, theirs, newest, connection.certified, linked_incarnation=linked)
            if theirs.node not in self.links and len(self.links) >= LINKS_MAX:
                raise PeerError(RejectCode.LINKS, f"this node has {LINKS_MAX} links already")
        except PeerError as error:
            if error.code is RejectCode.RUN and theirs.node not in self.links:
                self.strangers.refused(theirs, str(error), self.now())
            if (
                greeting.dialler is not None and error.code not in INCARNATION_CODES
            ):  # it is not this node's life
                self._note_refusal(greeting.dialler, theirs.node, error)
            raise
        same = held is not None and held.peer.incarnation == theirs.incarnation
        if held is not None and same:
            stays = newer_stays(
                ours=self.greeting.node,
                theirs=theirs.node,
                held_dialled=held.connection.dialled,
                new_dialled=connection.dialled,
            )
            if not stays:
                self._refuse_duplicate(connection, greeting, theirs)
                return
        if held is not None:
            words = RejectCode.DUPLICATE.sentence if same else STARTED_AGAIN
            held.connection.close(words)
            self._forget(held.connection, words, replaced=same)
        self._link_up(connection, greeting, theirs, again=same)

    def _refuse_duplicate(self, connection: Connection, greeting: _Handshake, theirs: Hello) -> None:
        if greeting.dialler is not None:
            greeting.dialler.met(theirs.node)
        error = PeerError(RejectCode.DUPLICATE)
        self._send_reject(connection, error)
        connection.close(str(error))
        self._forget(connection, str(error))

    def _send_reject(self, connection: Connection, error: PeerError) -> None:
        incarnation = error.newest if isinstance(error, BehindError) else 0
        node, details = self.greeting.node, error.details[:TEXT_MAX]
        reject = Reject(node=node, code=error.code, details=details, incarnation=incarnation)
        connection.send(pack_message(reject))

    def _link_up(self, connection: Connection, greeting: _Handshake, theirs: Hello, *, again: bool) -> None:
        if not connection.dialled:
            connection.send(pack_message(Welcome(**self.greeting.model_dump())))
        connection.reader.open(link_limits(self.coordinates))
        self._handshakes.end(connection)
        peer = Origin(theirs.node, theirs.incarnation)
        closed = asyncio.get_running_loop().create_future()
        link = Link(peer, theirs.name, theirs.rank, connection, self.now(), closed)
        self.links[theirs.node] = link
        self._by_connection[connection] = link
        self.strangers.linked(theirs.node)
        self.known_hosts.linked(connection.host)
        news = self.news.setdefault(theirs.node, PeerNews(theirs.name, connection.address, self.now()))
        if len(self.news) > NEWS_MAX:
            self._forget_strangers()
        news.name, news.incarnation, news.since, news.words = theirs.name, theirs.incarnation, self.now(), ""
        if greeting.dialler is not None:
            greeting.dialler.met(theirs.node)
            news.address = (
                connection.address if greeting.dialler.hinted is not None else greeting.dialler.called
            )
        if again:
            self.host.link_replaced(peer, theirs.name)
        else:
            self.host.link_opened(peer, theirs.name)
        greeting.over.set_result(None)

    def _rejected(self, message: object, dialler: AddressDialer | None, connection: Connection) -> None:
        assert isinstance(message, Reject)
        error = message.to_error()
        if dialler is not None:
            self._note_refusal(dialler, message.node, error, message.incarnation)
        elif error.code is not RejectCode.DUPLICATE:
            log.warning("%s closed the link: %s", self._describe(connection), error)
            self.dropped.count_told("rejected by peer", error.label)
        if dialler is None and error.code in INCARNATION_CODES:  # it has dialled, and refuses the WELCOME
            words = f"{self._describe(connection)}: {error}"
            self.host.refused_by_peer(error.code, words, message.incarnation, listed=False)
        connection.close(str(error))
        self._forget(connection, str(error))

    def _note_refusal(self, dialler: AddressDialer, node: int, error: PeerError, newest: int = 0) -> None:
        code, words = error.code, f"{dialler.called}: {error}"
        dialler.words = str(error)
        if code is RejectCode.DUPLICATE:
            dialler.met(node)
        elif dialler.hinted is not None:
            self.dropped.count_told("hint", error.label)  # the hint may be wrong, and this node right
            if code in INCARNATION_CODES:
                self.host.refused_by_peer(code, words, newest, listed=False)
        elif code is RejectCode.SELF and node == self.greeting.node:
            dialler.ourselves = True
            log.info("%s is this node itself, skipped", dialler.called)
        else:
            self.host.refused_by_peer(code, words, newest, listed=True)

    # -- bookkeeping

    def _forget_strangers(self) -> None:
        """Forget nodes that are neither linked nor members; only the bytes that their links carried stay
        counted.
        """
        for node, news in list(self.news.items()):
            if node not in self.links and self.host.member_incarnation(node) is None:
                self._past_sent += news.bytes_sent
                self._past_received += news.bytes_received
                del self.news[node]

    def _forget(self, connection: Connection, words: str, *, replaced: bool = False) -> None:
        greeting = self._handshakes.end(connection)
        if greeting is not None:
            if greeting.dialler is not None and not greeting.dialler.words:
                greeting.dialler.words = words
            if not greeting.over.done():
                greeting.over.set_result(None)
        link = self._by_connection.pop(connection, None)
        if link is not None:
            news = self.news[link.peer.node]
            news.bytes_sent += connection.bytes_sent
            news.bytes_received += connection.bytes_received
            news.since, news.words = self.now(), words
            if self.links.get(link.peer.node) is link:
                del self.links[link.peer.node]
            if not replaced:
                self.host.link_closed(link.peer, words)
            if not link.closed.done():
                link.closed.set_result(None)

    def _link(self, peer: Origin) -> Link | None:
        link = self.links.get(peer.node)
        return link if link is not None and link.peer == peer else None

    def _linked(self, node: int) -> asyncio.Future[None] | None:
        link = self.links.get(node)
        return None if link is None else link.closed

    def _describe(self, connection: Connection) -> str:
        link = self._by_connection.get(connection)
        return connection.address if link is None else f"{link.name} ({connection.address})"
