"""The doctors of all machines, met: each listens where its node would, dials all others, and tells them.

Bounded in time (`wait_s` for others to come, then what measuring takes), in connections and in bytes. Only
what a session's own checks let through is believed, and that only for the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import platform
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

import p2psgd
from p2psgd.discovery.hosts import Address
from p2psgd.doctor import bulk
from p2psgd.doctor.messages import DOCTOR, Dialled, Done, Facts
from p2psgd.doctor.outcome import Outcome, judge_failure
from p2psgd.doctor.peer import Peer
from p2psgd.doctor.session import Session
from p2psgd.doctor.stream import Stream, accept, dial
from p2psgd.errors import PeerError
from p2psgd.net.greeting import DOCTOR_OF_ANOTHER_RUN
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello, Reject, Welcome, pack_message, parse_message

DIAL_TIMEOUT_S: Final = 4.0  # longer than the 3 s after which a machine that is off is told by the network
GREETING_TIMEOUT_S: Final = 10.0
GREETINGS_MAX: Final = 32
DIALS_MAX: Final = 64  # at once
PAUSE_S: Final = 1.0  # between dials of one address
ADDRESSES_MAX: Final = 8  # of one name
VISITORS_MAX: Final = 16  # doctors and daemons that the list does not name
MEASURES_MAX: Final = 40  # times that one peer is asked for its turn
PARTING_S: Final = 10.0  # for what is under way after the last wait

log = logging.getLogger("p2psgd.doctor")


class Identity(Protocol):
    """What TLS says of this node (p2psgd.tls.credentials.Credentials)."""

    @property
    def server_context(self) -> ssl.SSLContext: ...
    @property
    def client_context(self) -> ssl.SSLContext: ...


class Meeting:
    """`peers` are the other lines of the list, `line` this node's own; `hello` says who this is."""

    def __init__(
        self,
        addresses: Sequence[Address],
        peers: Sequence[Address],
        *,
        line: Address | None,
        hello: Hello,
        tls: Identity | None,
    ) -> None:
        self.peers = [Peer(address) for address in peers]
        self.hello = hello
        self.dropped: Counter[str] = Counter()
        self.visitors: dict[str, str] = {}  # not named in the list: address, and what it is
        self.bulk_s = bulk.seconds_each(len(peers))
        self._addresses, self._line, self._tls = list(addresses), line, tls
        self._greeting = 0
        self._turn: Session | None = None
        self._changed = asyncio.Event()
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()
        self._facts = Facts(
            version=p2psgd.__version__[:40],
            python=platform.python_version()[:40],
            numpy=np.__version__[:40],
            port=0,
            line="" if line is None else str(line),
            hosts=digest_of(addresses),
        )

    async def hold(self, listening: socket.socket | None, *, wait_s: float) -> None:
        """Meet whoever comes within so long; without a socket this doctor only dials."""
        if listening is not None:
            port = int(listening.getsockname()[1])
            self._facts = self._facts.model_copy(update={"port": port})
            self._spawn(self._accept_all(listening))
        for peer in self.peers:
            self._spawn(self._seek(peer))
        self._spawn(self._measure_all())
        deadline = time.monotonic() + wait_s
        try:
            await self._until_satisfied(deadline)
            for peer in self.peers:
                peer.over = True
            self.tell_all()
            present = sum(peer.present for peer in self.peers)
            await self._until_satisfied(time.monotonic() + PARTING_S + 4 * self.bulk_s * present)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def tell_all(self) -> None:
        """Every session what it does not know yet."""
        for peer in self.peers:
            for session in peer.sessions:
                if session.facts is not None and not session.closed:
                    session.say(peer.dialled)
            if peer.satisfied:
                for session in peer.sessions:
                    session.say(Done())

    async def _until_satisfied(self, deadline: float) -> None:
        while not all(peer.satisfied and peer.released for peer in self.peers):
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline - time.monotonic() + asyncio.get_running_loop().time()):
                    await self._changed.wait()
            except TimeoutError:
                return
            self.tell_all()

    # -- SessionHost

    def news(self, session: Session) -> None:
        if session.facts is not None and session in self._sessions:
            self._place(session)
        self._changed.set()

    def grant(self, session: Session) -> bool:
        named = any(session in peer.sessions for peer in self.peers)
        if self._turn is not None or not named:
            return False
        self._turn = session
        return True

    def turn_over(self, session: Session) -> None:
        if self._turn is session:
            self._turn = None

    # -- who dials

    async def _seek(self, peer: Peer) -> None:
        """Dial one address until that tells nothing new."""
        while not peer.settled:
            async with self._dials:
                stream = await self._dial(peer)
            self._changed.set()
            if stream is not None:
                await self._talk(peer, stream)
            if peer.outcome is Outcome.DOCTOR and not any(each.done_there for each in peer.sessions):
                peer.failed(Outcome.REFUSED, "its doctor ended before it was done")
            if not peer.settled:
                await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))

    async def _dial(self, peer: Peer) -> Stream | None:
        """A connection to the first of its addresses that gives one."""
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.client_context
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                infos = await loop.getaddrinfo(peer.address.host, peer.address.port, type=socket.SOCK_STREAM)
            peer.hosts = tuple(dict.fromkeys(str(info[4][0]) for info in infos))[:ADDRESSES_MAX]
            failure: BaseException = OSError("no address")
            for host in peer.hosts:
                try:
                    return await dial(host, peer.address.port, tls=context, timeout_s=DIAL_TIMEOUT_S)
                except (OSError, TimeoutError) as error:
                    failure = error
        except (OSError, TimeoutError, UnicodeError) as error:
            failure = error
        peer.failed(*judge_failure(failure, DIAL_TIMEOUT_S))
        return None

    async def _talk(self, peer: Peer, stream: Stream) -> None:
        """Greet, and then whatever there is to say."""
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                session = await self._greet(peer, stream)
        except (PeerError, OSError, TimeoutError) as error:
            peer.failed(*judge_failure(error, GREETING_TIMEOUT_S))
            session = None
        if session is None:
            await stream.close()
            return
        await self._run(session)

    async def _greet(self, peer: Peer, stream: Stream) -> Session | None:
        """A session if a doctor answers; a daemon's answer is noted."""
        stream.write(pack_message(self.hello))
        frame = await stream.read()
        if frame is None:
            words = "it closed the connection at once"
            raise PeerError("tls" if self._tls else "closed", words + "; does it run without TLS?" * bool(self._tls))
        answer = parse_message(FrameType(frame[0]), frame[1])
        if isinstance(answer, Reject):
            self._rejected(peer, answer)
            return None
        if not isinstance(answer, Welcome) or not answer.mode.startswith(DOCTOR):
            raise PeerError("frame order", "a greeting that no doctor and no node answers with")
        self._check_identity(stream, answer)
        peer.check_node(answer.node)
        peer.outcome, peer.words, peer.node, peer.name = Outcome.DOCTOR, "", answer.node, answer.name
        session = Session(stream, answer, self._facts, dialled=True, host=self)
        self._sessions.add(session)
        peer.sessions.append(session)
        return session

    def _rejected(self, peer: Peer, answer: Reject) -> None:
        match answer.code:
            case "self" if answer.node == self.hello.node:
                peer.outcome = Outcome.ITSELF
            case code if code in (DOCTOR, DOCTOR_OF_ANOTHER_RUN):
                peer.outcome, peer.words, peer.node = Outcome.NODE, answer.words, answer.node
                peer.other_run = code == DOCTOR_OF_ANOTHER_RUN
            case "protocol":
                raise PeerError("protocol", answer.words)
            case code:
                raise PeerError(code, f"it refuses: {answer.words}")

    # -- who is dialled

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except OSError:  # out of descriptors, say
                await asyncio.sleep(PAUSE_S)
                continue
            if self._greeting >= GREETINGS_MAX:
                self.dropped["too many greetings"] += 1
                connected.close()
                continue
            self._greeting += 1
            self._spawn(self._admit(connected))

    async def _admit(self, connected: socket.socket) -> None:
        context = None if self._tls is None else self._tls.server_context
        session = stream = None
        try:
            stream = await accept(connected, tls=context, timeout_s=GREETING_TIMEOUT_S)
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                session = await self._answer(stream)
        except PeerError as error:
            self.dropped[error.reason] += 1
        except TimeoutError:
            self.dropped["no greeting"] += 1
        except ssl.SSLError:
            self.dropped["tls"] += 1
        except OSError:
            self.dropped["connection lost"] += 1
        finally:
            self._greeting -= 1
            if session is None and stream is not None:
                await stream.close()
        if session is not None:
            await self._run(session)

    async def _answer(self, stream: Stream) -> Session | None:
        """WELCOME to a doctor; to a daemon the REJECT after which it tries again later."""
        frame = await stream.read()
        if frame is None:
            raise PeerError("no greeting", "it closed without a greeting")
        theirs = parse_message(FrameType(frame[0]), frame[1])
        if not isinstance(theirs, Hello) or isinstance(theirs, Welcome):
            raise PeerError("frame order", "the first frame is no HELLO")
        self._check_identity(stream, theirs)
        if theirs.protocol != PROTOCOL_VERSION:
            words = f"protocol {theirs.protocol} there, {PROTOCOL_VERSION} here: install the same p2psgd on both"
            self._reject(stream, "protocol" if theirs.mode.startswith(DOCTOR) else DOCTOR, words)
        elif theirs.node == self.hello.node:
            self._reject(stream, "self", "this is the doctor itself")
        elif not theirs.mode.startswith(DOCTOR):
            self._heard_daemon(stream, theirs)
            self._reject(stream, DOCTOR, f"a doctor runs on {self.hello.name}, no node")
        elif len(self._sessions) >= 2 * len(self.peers) + VISITORS_MAX:
            raise PeerError("sessions", "more doctors than this one talks to")
        else:
            stream.write(pack_message(Welcome(**self.hello.model_dump())))
            session = Session(stream, theirs, self._facts, dialled=False, host=self)
            self._sessions.add(session)
            return session
        return None

    def _reject(self, stream: Stream, code: str, words: str) -> None:
        stream.write(pack_message(Reject(node=self.hello.node, code=code, words=words)))

    def _heard_daemon(self, stream: Stream, theirs: Hello) -> None:
        for peer in self.peers:
            if peer.node == theirs.node or stream.peer_host in peer.hosts:
                peer.heard_daemon = True
                return
        self._note_visitor(stream.peer_host, f"the node {theirs.name}")

    # -- sessions

    async def _run(self, session: Session) -> None:
        words = await session.run()
        self._sessions.discard(session)
        if words.startswith("dropped"):
            self.dropped["message"] += 1
            log.warning("%s: %s", session.stream.peer_host, ascii(words)[1:-1])

    def _place(self, session: Session) -> None:
        """Find out whose a session is that was not dialled from here."""
        facts = session.facts
        assert facts is not None
        if any(session in peer.sessions for peer in self.peers):
            return
        node, host = session.theirs.node, session.stream.peer_host
        by_node = [peer for peer in self.peers if peer.node == node]
        by_line = [peer for peer in self.peers if facts.line and str(peer.address) == facts.line]
        by_host = [peer for peer in self.peers if host in peer.hosts and facts.port == peer.address.port]
        for peer in (*by_node, *by_line, *by_host):
            if peer.node in (None, node) or not peer.present:
                peer.node, peer.name = node, session.theirs.name
                peer.sessions.append(session)
                session.say(peer.dialled)
                return
        self._note_visitor(host, f"the doctor of {session.theirs.name}")
        session.say(Dialled(reached=False, final=True, words="this machine is not in the list of hosts there"))
        session.say(Done())

    def _note_visitor(self, host: str, words: str) -> None:
        if len(self.visitors) < VISITORS_MAX:
            self.visitors.setdefault(host, words)

    def _check_identity(self, stream: Stream, theirs: Hello) -> None:
        """With TLS, the certificate says who it is."""
        if self._tls is None or stream.tls is None:
            return
        from p2psgd.tls.credentials import peer_of

        if peer_of(stream.tls).node != theirs.node:
            raise PeerError("identity", "its certificate is of another node")

    # -- measuring

    async def _measure_all(self) -> None:
        """Of each two the one with the lower id does; one peer at a time, in no fixed order."""
        tries: Counter[Address] = Counter()
        while True:
            due = [
                (peer, session)
                for peer in self.peers
                for session in peer.sessions[:1] or []
                if peer.present and not peer.measured and self.hello.node < session.theirs.node
            ]
            if not due or self._turn is not None:
                await asyncio.sleep(0.05)
                continue
            peer, _ = random.choice(due)
            session = next(each for each in peer.sessions if not each.closed and each.facts is not None)
            tries[peer.address] += 1
            session.given_up = tries[peer.address] >= MEASURES_MAX
            self._turn = session
            measured = False
            try:
                measured = await session.measure()
            except (OSError, TimeoutError):
                session.given_up = True
            finally:
                self.turn_over(session)
                self.news(session)
            if not measured:
                await asyncio.sleep(random.uniform(0.05, 0.4))

    def _spawn(self, work: object) -> None:
        task = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def digest_of(addresses: Sequence[Address]) -> bytes:
    """SHA-256 of a list of hosts, in its order."""
    return hashlib.sha256("\n".join(map(str, addresses)).encode()).digest()
