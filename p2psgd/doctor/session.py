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

from p2psgd.doctor.bulk import BYTES_MAX, Counter, rate, send_bulk
from p2psgd.doctor.messages import (
    BulkEnd,
    Counted,
    Dialled,
    Done,
    Echo,
    Echoed,
    Facts,
    Kind,
    Taken,
    Turn,
    pack,
    parse,
)
from p2psgd.doctor.stream import Stream
from p2psgd.errors import PeerError
from p2psgd.wire.messages import Hello, Message

ECHOES: Final = 8
ANSWER_TIMEOUT_S: Final = 10.0  # what was asked for a while ago does not come any more
BULK_TIMEOUT_S: Final = 20.0  # a second of bytes, and what waits on a slow way
MESSAGES_MAX: Final = 4096  # of one session, but for BULK; a session of two doctors has fewer than 200
TURNS_MAX: Final = 3  # that one session is granted


class SessionHost(Protocol):
    """The doctor that a session belongs to."""

    def news(self, session: Session) -> None: ...  # something is known that was not
    def grant(self, session: Session) -> bool: ...  # the other one may measure now
    def turn_over(self, session: Session) -> None: ...
    @property
    def bulk_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the other's clock is ahead of this one's, give or take half of the round trip."""

    round_trip_s: float
    ahead_s: float


class Session:
    """One connection to another doctor; `theirs` is its greeting. `dialled`: by this side."""

    def __init__(self, stream: Stream, theirs: Hello, ours: Facts, *, dialled: bool, host: SessionHost) -> None:
        self.theirs, self.dialled, self.stream = theirs, dialled, stream
        self.facts: Facts | None = None
        self.clock: Clock | None = None
        self.clock_tried = False
        self.their_dial: Dialled | None = None
        self.sent_rate: float | None = None  # bytes a second, as counted there
        self.received_rate: float | None = None
        self.given_up = False  # measuring: it was tried as often as it is worth
        self.done_there = False
        self.closed = False
        self._ours, self._host = ours, host
        self._said: Message | None = None  # DIALLED or DONE, whichever was last
        self._messages = self._turns = 0
        self._bytes_left = 0
        self._counter: Counter | None = None
        self._measuring = False  # this side has the turn
        self._asked: dict[type[Message], asyncio.Future[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> str:
        """Until either side ends it; returns why, in a few words."""
        self.stream.open()
        self.stream.write(pack(self._ours))
        self._spawn(self._compare_clocks())
        words = "closed by the other side"
        try:
            while (frame := await self.stream.read()) is not None:
                self._receive(*frame)
        except PeerError as error:
            words = f"dropped: {error}"
        except OSError as error:
            words = (error.strerror or str(error) or "connection lost").lower()
        finally:
            self.closed = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for future in self._asked.values():
                future.cancel()  # whoever waits has a limit of time, too
            self._host.turn_over(self)
            self._host.news(self)
            await self.stream.close()
        return words

    def say(self, message: Dialled | Done) -> None:
        """Unless it was said last."""
        if message != self._said and not self.closed:
            self._said = message
            self.stream.write(pack(message))

    async def measure(self) -> bool:
        """Both ways, one after the other; False if the other is busy. OSError or TimeoutError if it fails."""
        taken = await self._ask(Turn(), Taken, ANSWER_TIMEOUT_S)
        if not (isinstance(taken, Taken) and taken.granted):
            return False
        self._measuring = True
        counted, ended = self._expect(Counted), self._expect(BulkEnd)
        try:
            self._begin_counting()
            async with asyncio.timeout(BULK_TIMEOUT_S):
                await send_bulk(self.stream, seconds=self._host.bulk_s)
            await self._wait(counted, BULK_TIMEOUT_S)
            await self._wait(ended, BULK_TIMEOUT_S)
        finally:
            self._measuring = False
            counted.cancel()
            ended.cancel()
        return True

    def _receive(self, kind: int, body: bytes) -> None:
        if kind == Kind.BULK:
            self._take_bulk(len(body))
            return
        self._messages += 1
        if self._messages > MESSAGES_MAX:
            raise PeerError("messages", f"more than {MESSAGES_MAX} messages")
        message = parse(kind, body)
        if self.facts is None and not isinstance(message, Facts):
            raise PeerError("frame order", f"{Kind(kind).name} came before FACTS")
        match message:
            case Facts() if self.facts is None:
                self.facts = message
            case Echo():
                self.stream.write(pack(Echoed(number=message.number, clock_ns=time.time_ns())))
            case Dialled():
                self.their_dial = message
            case Turn():
                self._grant()
            case BulkEnd():
                self._bulk_ended()
            case Counted():
                self.sent_rate = rate(message.received, message.took_us)
                if not self._measuring:
                    self._host.turn_over(self)
            case Done():
                self.done_there = True
            case Echoed() | Taken():
                pass
            case _:
                raise PeerError("frame order", f"{Kind(kind).name} came twice")
        waiting = self._asked.pop(type(message), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        self._host.news(self)

    # -- what the link carries

    def _grant(self) -> None:
        granted = self._turns < TURNS_MAX and self._host.grant(self)
        if granted:
            self._turns += 1
            self._begin_counting()
            self._spawn(self._end_turn_at_last())
        self.stream.write(pack(Taken(granted=granted)))

    def _begin_counting(self) -> None:
        self._counter, self._bytes_left = Counter(), BYTES_MAX

    def _take_bulk(self, size: int) -> None:
        if self._counter is None or size > self._bytes_left:
            raise PeerError("bulk", f"more than {BYTES_MAX} bytes, or some that were not asked for")
        self._bytes_left -= size
        self._counter.take(size, time.monotonic())

    def _bulk_ended(self) -> None:
        counter, self._counter = self._counter, None
        if counter is None:
            raise PeerError("frame order", "BULK_END came where no BULK was to come")
        self.received_rate = rate(counter.received, counter.took_us)
        self.stream.write(pack(Counted(received=counter.received, took_us=counter.took_us)))
        if not self._measuring:
            self._spawn(self._send_back())

    async def _send_back(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(BULK_TIMEOUT_S):
                await send_bulk(self.stream, seconds=self._host.bulk_s)

    async def _end_turn_at_last(self) -> None:
        await asyncio.sleep(2 * BULK_TIMEOUT_S)
        self._host.turn_over(self)

    # -- the clocks

    async def _compare_clocks(self) -> None:
        """The best of several round trips: whatever comes between only adds time."""
        best: Clock | None = None
        with contextlib.suppress(OSError, TimeoutError):
            for number in range(ECHOES):
                began_ns, began = time.time_ns(), time.monotonic()
                answer = await self._ask(Echo(number=number), Echoed, ANSWER_TIMEOUT_S)
                assert isinstance(answer, Echoed)
                took_s = time.monotonic() - began
                if answer.number == number and (best is None or took_s < best.round_trip_s):
                    ahead_ns = answer.clock_ns - began_ns
                    best = Clock(took_s, ahead_ns / 1e9 - took_s / 2)
        self.clock, self.clock_tried = best, True
        self._host.news(self)

    # -- questions

    async def _ask(self, question: Message, kind: type[Message], timeout_s: float) -> Message:
        answer = self._expect(kind)
        self.stream.write(pack(question))
        return await self._wait(answer, timeout_s)

    def _expect(self, kind: type[Message]) -> asyncio.Future[Message]:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[kind] = future
        return future

    async def _wait(self, answer: asyncio.Future[Message], timeout_s: float) -> Message:
        """TimeoutError if it does not come in time, or not any more."""
        await asyncio.wait([answer], timeout=timeout_s)
        if not answer.done() or answer.cancelled():
            raise TimeoutError
        return answer.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
