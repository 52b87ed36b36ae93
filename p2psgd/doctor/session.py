"""Two doctors, linked: facts, the clocks, what became of each one's dials of the other, and what the link
carries.

Whatever the other one sends is checked and counted; one that breaks a rule or a cap is dropped, and nothing
that it sends can do more than be wrong in a report.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from p2psgd.doctor.bulk import BYTES_MAX, Bursts, Counter, rate
from p2psgd.doctor.messages import (
    BULK,
    BulkEnd,
    Counted,
    Dialled,
    Done,
    Echo,
    Echoed,
    Facts,
    Over,
    Taken,
    Turn,
    Yours,
    pack,
    parse,
)
from p2psgd.errors import PeerError
from p2psgd.net.connection import Connection
from p2psgd.wire.frames import Body
from p2psgd.wire.messages import Hello, Message

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
