"""The doctors of all machines, met: each listens where its node would, dials all others, and tells them.

Bounded in time (`wait_s` for others to come, then what measuring takes), in connections and in bytes. What
others say is believed for the report only.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import random
import socket
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import numpy as np

import p2psgd
from p2psgd.cli.doctor import session as bulk
from p2psgd.cli.doctor.messages import Dialled, Done, Facts, Outcome, judge_failure
from p2psgd.cli.doctor.session import Peer, Reception, Session
from p2psgd.errors import PeerError
from p2psgd.net.address import Address, UnknownNameError, look_up
from p2psgd.net.admission import KnownHosts
from p2psgd.net.connection import Connection
from p2psgd.net.handshake import DOCTOR, DOCTOR_OF_ANOTHER_RUN
from p2psgd.net.tls import Credentials
from p2psgd.wire.messages import Hello, Reject

DIAL_TIMEOUT_S: Final = 4.0  # longer than the 3 s after which a LAN tells that a machine is off
DIALS_MAX: Final = 64  # at once
PAUSE_S: Final = 1.0  # between dials of one address
ADDRESSES_MAX: Final = 8  # of one name
VISITORS_MAX: Final = 16  # doctors and nodes that the list does not name
MEASURES_MAX: Final = 40  # times that one peer is asked for its turn
PARTING_S: Final = 10.0  # for what is under way after the last wait
LOOK_S: Final = 0.05  # for a link to measure


class Meeting:
    """`peers` are the other lines of the list of `addresses`, `line` is this node's own; `hello` says who
    this is.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        peers: Sequence[Address],
        *,
        line: Address | None,
        hello: Hello,
        credentials: Credentials | None,
    ) -> None:
        self.peers = [Peer(address) for address in peers]
        self.hello = hello
        self.visitors: dict[str, str] = {}  # not named in the list: address, and what it is
        self.bulk_s = bulk.seconds_each(len(peers))
        known_hosts = KnownHosts(lambda: (host for peer in self.peers for host in peer.hosts))
        self.reception = Reception(self, hello, credentials, known_hosts)
        self.facts = Facts(
            version=p2psgd.__version__[:40],
            python=platform.python_version()[:40],
            numpy=np.__version__[:40],
            port=0,
            line="" if line is None else str(line),
            hosts=digest_of(addresses),
        )
        self._sessions_open = 0
        self._turn: Session | None = None
        self._changed = asyncio.Event()
        self._dials = asyncio.Semaphore(DIALS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    async def hold(self, listening: socket.socket | None, *, wait_s: float) -> None:
        """Meet whoever comes within so long; without a socket this doctor only dials."""
        loop = asyncio.get_running_loop()
        if listening is not None:
            self.facts = self.facts.model_copy(update={"port": int(listening.getsockname()[1])})
            await self.reception.listen(listening)
        for peer in self.peers:
            self._spawn(self._seek(peer))
        self._spawn(self._measure_all())
        try:
            await self._until_satisfied(loop.time() + wait_s)
            for peer in self.peers:
                peer.over = True
            self._tell_all()
            present = sum(peer.present for peer in self.peers)
            await self._until_satisfied(loop.time() + PARTING_S + 4 * self.bulk_s * present)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.reception.close()

    async def _until_satisfied(self, deadline: float) -> None:
        while not all(peer.satisfied and peer.released for peer in self.peers):
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return
            self._tell_all()

    def _tell_all(self) -> None:
        """Every session what it does not know yet."""
        for peer in self.peers:
            for session in peer.sessions:
                if session.facts is not None:
                    session.say(peer.dialled)
                    if peer.satisfied:
                        session.say(Done())

    # -- ReceptionHost

    def open_session(self, connection: Connection, theirs: Hello) -> Session:
        """PeerError if there are too many."""
        if self._sessions_open >= 2 * len(self.peers) + VISITORS_MAX:
            raise PeerError("sessions", "more doctors than this one talks to")
        self._sessions_open += 1
        session = Session(connection, theirs, self.facts, self)
        session.over.add_done_callback(self._session_over)
        return session

    def node_heard(self, address: str, theirs: Hello) -> None:
        """A daemon has dialled this port."""
        for peer in self.peers:
            if peer.node == theirs.node or _host_of(address) in peer.hosts:
                peer.heard_node = True
                self._changed.set()
                return
        self._note_visitor(address, f"the node {theirs.name}")

    def _session_over(self, _: asyncio.Future[str]) -> None:
        self._sessions_open -= 1

    # -- SessionHost

    def news(self, session: Session) -> None:
        if session.facts is not None and not session.dialled:
            self._place(session, session.facts)
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

    def _place(self, session: Session, facts: Facts) -> None:
        """Find out which line a session belongs to that was not dialled from here."""
        if any(session in peer.sessions for peer in self.peers):
            return
        node, host = session.theirs.node, _host_of(session.address)
        by_node = [peer for peer in self.peers if peer.node == node]
        by_line = [peer for peer in self.peers if facts.line and str(peer.address) == facts.line]
        by_host = [peer for peer in self.peers if host in peer.hosts and facts.port == peer.address.port]
        for peer in (*by_node, *by_line, *by_host):
            if peer.node in (None, node) or not peer.present:
                peer.meet(session)
                return
        self._note_visitor(session.address, f"the doctor of {session.theirs.name}")
        session.say(
            Dialled(reached=False, final=True, words="this machine is not in the list of hosts there")
        )
        session.say(Done())

    def _note_visitor(self, address: str, words: str) -> None:
        host = _host_of(address)
        if host in self.visitors or len(self.visitors) < VISITORS_MAX:
            self.visitors[host] = words

    # -- dialling

    async def _seek(self, peer: Peer) -> None:
        """Dial one address until that tells nothing new."""
        while not peer.settled:
            async with self._dials:
                session = await self._dial(peer)
            self._changed.set()
            if session is not None:
                words = await session.over
                if not any(each.done_there for each in peer.sessions):
                    peer.failed(Outcome.LEFT, f"its doctor ended before it was done: {words}")
            if not peer.settled:
                await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))

    async def _dial(self, peer: Peer) -> Session | None:
        """The first of its addresses that answers."""
        failure: BaseException | None = None
        try:
            found = await look_up(peer.address, timeout_s=DIAL_TIMEOUT_S)
            peer.hosts = tuple(each.host for each in found)[:ADDRESSES_MAX]
        except UnknownNameError as error:
            failure = error
        for host in peer.hosts:
            try:
                answer = await self.reception.dial(host, peer.address.port, timeout_s=DIAL_TIMEOUT_S)
                if isinstance(answer, Session):
                    peer.answered(answer)
                    return answer
                self._rejected(peer, answer)
                return None
            except (OSError, TimeoutError, PeerError) as error:
                failure = error
        assert failure is not None
        peer.failed(*judge_failure(failure, DIAL_TIMEOUT_S))
        return None

    def _rejected(self, peer: Peer, answer: Reject) -> None:
        """PeerError if it is neither a node nor this doctor."""
        mine = answer.node == self.hello.node
        if mine and answer.code in ("self", DOCTOR):
            peer.outcome = Outcome.ITSELF
        elif answer.code in (DOCTOR, DOCTOR_OF_ANOTHER_RUN):
            peer.outcome, peer.words, peer.node = Outcome.NODE, answer.words, answer.node
            peer.other_run = answer.code == DOCTOR_OF_ANOTHER_RUN
        else:
            raise PeerError(answer.code, answer.words)

    # -- measuring

    async def _measure_all(self) -> None:
        """Of each two the one with the lower id does; one peer at a time, in no fixed order."""
        tries: Counter[Address] = Counter()
        while True:
            due = [(peer, session) for peer in self.peers if (session := self._to_measure(peer)) is not None]
            if not due or self._turn is not None:
                await asyncio.sleep(LOOK_S)
                continue
            peer, session = random.choice(due)
            tries[peer.address] += 1
            self._turn = session
            measured, failed = False, False
            try:
                measured = await session.measure()
            except TimeoutError:
                failed = True
            self.turn_over(session)
            session.given_up = failed or (not measured and tries[peer.address] >= MEASURES_MAX)
            self.news(session)
            if not measured:
                await asyncio.sleep(random.uniform(1, 8) * LOOK_S)

    def _to_measure(self, peer: Peer) -> Session | None:
        if peer.measured:
            return None
        usable = [each for each in peer.sessions if not each.closed and each.facts is not None]
        return next((each for each in usable if self.hello.node < each.theirs.node), None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def digest_of(addresses: Sequence[Address]) -> bytes:
    """SHA-256 of a list of hosts, in its order."""
    return hashlib.sha256("\n".join(map(str, addresses)).encode()).digest()


def _host_of(address: str) -> str:
    """Of a connection's address."""
    return address.rpartition(":")[0].strip("[]").removeprefix("::ffff:")
