"""Connections of doctors: their reception, a session of two, a peer's state, and the bulk transfer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from p2psgd.cli.doctor.messages import (
    BULK,
    BULK_BYTES,
    REACHED,
    TELLING,
    UNANSWERED,
    BulkEnd,
    Counted,
    Dialled,
    Done,
    Echo,
    Echoed,
    Facts,
    Outcome,
    Over,
    Taken,
    Turn,
    Yours,
    pack,
    parse,
)
from p2psgd.errors import PeerError
from p2psgd.net.address import Address
from p2psgd.net.admission import Greetings, KnownHosts
from p2psgd.net.connection import Connection
from p2psgd.net.handshake import DOCTOR, check_certificate
from p2psgd.net.listen import BACKLOG
from p2psgd.net.rejections import Reasons
from p2psgd.net.tls import Credentials
from p2psgd.wire.frames import DOCTOR_LIMITS, Body, FrameType
from p2psgd.wire.messages import (
    PROTOCOL_VERSION,
    WORDS_MAX,
    Hello,
    Message,
    Reject,
    Welcome,
    pack_message,
    parse_message,
)

# ----------------------------------------------------------------------------
# How long what a link carries is measured, and how its rate is worked out. Pure.
#
# Bytes go in bursts, each twice as long as the one before, until one takes a third of the time that there
# is: so the last has seen TCP's slow start and a shaper's allowance behind it, and on a slow link little is
# sent.


BYTES_MAX: Final = 32 * 1024 * 1024  # each way
SECONDS_MAX: Final = 1.0
SECONDS_MIN: Final = 0.1
ALL_SECONDS: Final = 16.0  # of one node with all its peers, each way; beyond so many each gets less
FIRST_FRAMES: Final = 2


def seconds_each(peers: int) -> float:
    """About how long one measurement takes, each way, where there are so many peers."""
    return max(SECONDS_MIN, min(SECONDS_MAX, ALL_SECONDS / max(1, peers)))


class Bursts:
    """How many frames to send next, of one measurement one way that is to take about `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.frames = FIRST_FRAMES
        self._enough_s = seconds / 3
        self._left = BYTES_MAX // BULK_BYTES - FIRST_FRAMES

    def goes_on(self, took_s: float) -> bool:
        """The last burst and its answer took so long; is there another?"""
        self.frames *= 2
        self._left -= self.frames
        return took_s < self._enough_s and self._left >= 0


class Counter:
    """Of one burst as it comes. The first frame is left out, for nobody has timed its way here."""

    def __init__(self) -> None:
        self.received = 0
        self._first: float | None = None
        self._last = 0.0

    def take(self, size: int, now: float) -> None:
        """A frame of so many bytes is there, at so many seconds."""
        if self._first is None:
            self._first = now
        else:
            self.received += size
        self._last = now

    @property
    def took_us(self) -> int:
        return 0 if self._first is None else round(1e6 * (self._last - self._first))


def rate(received: int, took_us: int) -> float | None:
    """Bytes a second; None of nothing."""
    return 1e6 * received / took_us if took_us > 0 and received > 0 else None


# ----------------------------------------------------------------------------
# Two doctors, linked: facts, the clocks, what became of each one's dials of the other, and what the link
# carries.
#
# Whatever the other one sends is checked and counted; one that breaks a rule or a cap is dropped, and
# nothing that it sends can do more than be wrong in a report.


ECHOES: Final = 8
ANSWER_TIMEOUT_S: Final = 10.0  # what was asked for a while ago does not come any more
TURN_TIMEOUT_S: Final = 30.0  # a slow link takes longer for a burst than it should
MESSAGES_MAX: Final = 2000  # of one session, but for BULK; two doctors need fewer than 200
TURNS_MAX: Final = 3  # that one session is granted


class SessionHost(Protocol):
    """The doctor that a session belongs to."""

    bulk_s: float

    def news(self, session: Session) -> None: ...  # something is known that was not
    def grant(self, session: Session) -> bool: ...  # may the other one measure now?
    def turn_over(self, session: Session) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the other's clock is ahead of this one's, give or take half of the round trip."""

    round_trip_s: float
    ahead_s: float


class Session:
    """A connection to another doctor; `theirs` is its greeting. `dialled`: by this side."""

    def __init__(self, connection: Connection, theirs: Hello, ours: Facts, host: SessionHost) -> None:
        self.theirs, self.dialled, self.address = theirs, connection.dialled, connection.address
        self.facts: Facts | None = None
        self.clock: Clock | None = None
        self.clock_tried = False
        self.their_dial: Dialled | None = None
        self.sent_rate: float | None = None  # bytes a second, as counted there
        self.received_rate: float | None = None
        self.measured = False
        self.given_up = False  # it was tried as often as it is worth
        self.done_there = False
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connection, self._ours, self._host = connection, ours, host
        self._said: dict[type[Message], Message] = {}  # DIALLED and DONE, as they were last
        self._messages = self._turns = 0
        self._measuring = False  # it is this side that has asked for the turn
        self._counter: Counter | None = None  # while bytes may come
        self._bytes_left = 0
        self._asked: dict[type[Message], asyncio.Future[Message]] = {}
        self._drained = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def closed(self) -> bool:
        return self.over.done()

    def begin(self) -> None:
        """Both have greeted."""
        self._send(self._ours)
        self._spawn(self._compare_clocks())

    def end(self, words: str) -> None:
        """The connection is gone, or goes."""
        if self.closed:
            return
        self.over.set_result(words)
        for task in self._tasks:
            task.cancel()
        for answer in self._asked.values():
            answer.cancel()
        self._drained.set()
        self._host.turn_over(self)
        self._host.news(self)

    def say(self, message: Dialled | Done) -> None:
        """Unless it is known there."""
        if message != self._said.get(type(message)):
            self._said[type(message)] = message
            self._send(message)

    def drained(self) -> None:
        """There is room for more to send."""
        self._drained.set()

    def receive(self, body: Body) -> None:
        """A DOCTOR frame; PeerError if it may not come."""
        message = parse(body)
        if message is None:
            self._take_bulk(len(body))
            return
        self._messages += 1
        if self._messages > MESSAGES_MAX:
            raise PeerError("messages", f"more than {MESSAGES_MAX} messages")
        if self.facts is None and not isinstance(message, Facts):
            raise PeerError("frame order", f"{type(message).__name__} came before Facts")
        self._take(message)
        waiting = self._asked.pop(type(message), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        self._host.news(self)

    def _take(self, message: Message) -> None:
        match message:
            case Facts() if self.facts is None:
                self.facts = message
            case Echo():
                self._send(Echoed(clock_ns=time.time_ns()))
            case Dialled():
                self.their_dial = message
            case Turn():
                self._grant()
            case BulkEnd():
                self._burst_ended()
            case Counted():
                self.sent_rate = rate(message.received, message.took_us) or self.sent_rate
            case Yours() if self._counter is not None and not self._measuring:
                self._counter = None
                self._spawn(self._send_back())
            case Over():
                self._counter = None
            case Done():
                self.done_there = True
            case Echoed() | Taken():
                pass
            case _:
                raise PeerError("frame order", f"{type(message).__name__} may not come now")

    # -- what the link carries

    async def measure(self) -> bool:
        """Both ways, one after the other; False if the other is busy. TimeoutError if it takes too long, or
        the connection is gone.
        """
        taken = await self._ask(Turn(), Taken, ANSWER_TIMEOUT_S)
        if not (isinstance(taken, Taken) and taken.granted):
            return False
        self._measuring = True
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._send_bursts()
                self._begin_counting()
                await self._ask(Yours(), Over, TURN_TIMEOUT_S)
        finally:
            self._measuring = False
        self.measured = True
        return True

    async def _send_bursts(self) -> None:
        bursts = Bursts(self._host.bulk_s)
        going = True
        while going:
            began = time.monotonic()
            for _ in range(bursts.frames):
                if not self._connection.writable:
                    self._drained.clear()
                    self._connection.report_drained()
                    await self._drained.wait()
                self._connection.send(BULK)
            await self._ask(BulkEnd(), Counted, TURN_TIMEOUT_S)
            going = bursts.goes_on(time.monotonic() - began)

    async def _send_back(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._send_bursts()
        self.measured = True
        self._send(Over())
        self._host.turn_over(self)
        self._host.news(self)

    def _grant(self) -> None:
        granted = self._turns < TURNS_MAX and self._host.grant(self)
        if granted:
            self._turns += 1
            self._begin_counting()
            self._spawn(self._end_turn_at_last())
        self._send(Taken(granted=granted))

    async def _end_turn_at_last(self) -> None:
        await asyncio.sleep(2 * TURN_TIMEOUT_S)
        self._host.turn_over(self)

    def _begin_counting(self) -> None:
        self._counter, self._bytes_left = Counter(), BYTES_MAX

    def _take_bulk(self, size: int) -> None:
        if self._counter is None or size > self._bytes_left:
            raise PeerError("bulk", f"more than {BYTES_MAX} bytes, or some that were not asked for")
        self._bytes_left -= size
        self._counter.take(size, time.monotonic())

    def _burst_ended(self) -> None:
        if self._counter is None:
            raise PeerError("frame order", "BULK_END came where no BULK was to come")
        counter, self._counter = self._counter, Counter()
        self.received_rate = rate(counter.received, counter.took_us) or self.received_rate
        self._send(Counted(received=counter.received, took_us=counter.took_us))

    # -- the clocks

    async def _compare_clocks(self) -> None:
        """The best of several round trips: whatever comes between only adds time."""
        best: Clock | None = None
        with contextlib.suppress(TimeoutError):
            for _ in range(ECHOES):
                began_ns, began = time.time_ns(), time.monotonic()
                answer = await self._ask(Echo(), Echoed, ANSWER_TIMEOUT_S)
                took_s = time.monotonic() - began
                assert isinstance(answer, Echoed)
                if best is None or took_s < best.round_trip_s:
                    best = Clock(took_s, (answer.clock_ns - began_ns) / 1e9 - took_s / 2)
        self.clock, self.clock_tried = best, True
        self._host.news(self)

    # -- questions

    async def _ask(self, question: Message, kind: type[Message], timeout_s: float) -> Message:
        """The next message of that kind; TimeoutError if it does not come in time, or not any more."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[kind] = answer
        self._send(question)
        if not self.closed:
            await asyncio.wait([answer], timeout=timeout_s)
        if not answer.done() or answer.cancelled():
            raise TimeoutError
        return answer.result()

    def _send(self, message: Message) -> None:
        self._connection.send(pack(message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


# ----------------------------------------------------------------------------
# A doctor's connections until they are sessions: listening, dialling, greeting; and every refusal counted.
#
# A node that dials is told that a doctor runs here, and tries again later as it does when nothing listens.


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


# ----------------------------------------------------------------------------
# One line of the list of hosts, and all that this doctor has learned of the machine behind it.


FAILURES_ENOUGH = 2  # dials of a machine that is known to run a doctor: the way there is closed


@dataclass
class Peer:
    """`outcome` and `words` are of the last dial; `hosts` the numeric addresses that the line leads to."""

    address: Address
    outcome: Outcome = Outcome.UNTRIED
    words: str = ""
    hosts: tuple[str, ...] = ()
    node: int | None = None  # that answers there
    name: str = ""
    other_run: bool = False  # the node there trains another run than the one asked for
    heard_node: bool = False  # the node there has dialled this doctor
    sessions: list[Session] = field(default_factory=list)
    over: bool = False  # no more dials
    _failures: int = 0  # since its doctor is known to run

    def __str__(self) -> str:
        return f"{self.address} ({self.name})" if self.name else str(self.address)

    def failed(self, outcome: Outcome, words: str) -> None:
        """A dial led nowhere."""
        if not (outcome in UNANSWERED and self.outcome in TELLING):
            self.outcome, self.words = outcome, words[:200]
        self._failures += self.present and outcome in UNANSWERED  # others may pass: a flood at its port, say

    def answered(self, session: Session) -> None:
        """A dial led to a doctor."""
        self.outcome, self.words = Outcome.DOCTOR, ""
        self.meet(session)

    def meet(self, session: Session) -> None:
        """Its doctor is there, on this session."""
        self.node, self.name = session.theirs.node, session.theirs.name
        self.sessions = [each for each in self.sessions if each.theirs.node == self.node] + [session]

    @property
    def present(self) -> bool:
        """A doctor runs there now."""
        return any(not session.closed for session in self.sessions)

    @property
    def settled(self) -> bool:
        """More dials would tell nothing new."""
        return self.over or self.outcome in REACHED or self._failures >= FAILURES_ENOUGH

    @property
    def dialled(self) -> Dialled:
        """What its doctor is told of these dials."""
        reached = self.outcome in REACHED
        return Dialled(reached=reached, final=self.settled, words="" if reached else self.words)

    @property
    def reaches_us(self) -> bool | None:
        """Its dials come here; None: not known."""
        if self.heard_node or any(not each.dialled for each in self.sessions):
            return True
        said = [each.their_dial for each in self.sessions if each.their_dial is not None]
        if any(each.reached for each in said):
            return True
        return False if any(each.final for each in said) else None

    @property
    def their_words(self) -> str:
        """Why its dials do not come here, as it tells."""
        said = [each.their_dial.words for each in self.sessions if each.their_dial is not None]
        return said[-1] if said else ""

    @property
    def clock(self) -> Clock | None:
        """The best that was measured."""
        clocks = [each.clock for each in self.sessions if each.clock is not None]
        return min(clocks, key=lambda clock: clock.round_trip_s, default=None)

    @property
    def sent_rate(self) -> float | None:
        """Bytes a second from here to there."""
        return next((each.sent_rate for each in self.sessions if each.sent_rate is not None), None)

    @property
    def received_rate(self) -> float | None:
        """And from there."""
        return next((each.received_rate for each in self.sessions if each.received_rate is not None), None)

    @property
    def measured(self) -> bool:
        """Or it will not be any more."""
        return any(each.measured or each.given_up or each.done_there for each in self.sessions)

    @property
    def satisfied(self) -> bool:
        """Nothing more is to be learned of it."""
        if self.outcome in (Outcome.NODE, Outcome.ITSELF):
            return True
        if not self.settled:
            return False
        if not self.present:
            return self.over or any(each.done_there for each in self.sessions)
        clocks = all(each.clock_tried for each in self.sessions if not each.closed)
        return self.reaches_us is not None and clocks and self.measured

    @property
    def released(self) -> bool:
        """Its doctor needs no more of this one."""
        return all(each.done_there or each.closed for each in self.sessions)
