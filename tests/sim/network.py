"""The virtual network: lines between nodes, and TCP connections on them as far as a daemon notices them.

A `Line` is one direction between two nodes: latency, bandwidth, cuts. A `Pipe` is one direction of one
connection: bytes in order, in pieces. What a cut line holds back arrives after it is mended, as TCP sends it
again; when that takes four failure timeouts the sender's kernel gives the connection up. A paused node's
kernel takes bytes; its daemon reads them later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from p2psgd.wire.frames import FrameReader
from tests.sim.clock import Clock
from tests.sim.tampering import BROKEN, Tamperer

PIECES_SHARE: Final = 1 / 16  # of all frames arrive in two pieces
NUMBERS_AT_ONCE_SHARE: Final = 0.5  # of numbers that lie in the sender's memory are read when handed over
USER_TIMEOUT_PER_TIMEOUT: Final = 4  # as the daemon sets TCP_USER_TIMEOUT


class Numbers:
    """A whole frame whose end is read from its sender's memory some time after it was handed over."""

    def __init__(self, head: bytes, numbers: memoryview) -> None:
        self._head = head
        self._numbers = numbers
        self._whole: bytes | None = None

    def __len__(self) -> int:
        return len(self._head) + self._numbers.nbytes

    def read(self) -> bytes:
        """The frame as its numbers are now, or were when it was first read."""
        if self._whole is None:
            self._whole = self._head + bytes(self._numbers)
        return self._whole


class Socket(Protocol):
    """One end of a connection, as the network sees it."""

    closing: bool  # nobody will ever read here again: what arrives is answered by a reset

    @property
    def reading(self) -> bool:
        """The process lives and is not paused."""
        ...

    def bytes_arrived(self, piece: bytes) -> None: ...
    def ended(self, words: str) -> None: ...
    def drained(self) -> None: ...


class Line:
    """One direction between two nodes, whatever connections there are."""

    def __init__(
        self, clock: Clock, chance: Random, *, latency_s: float, jitter_s: float, bytes_per_s: float
    ) -> None:
        self.clock = clock
        self.chance = chance
        self.random = chance.random
        self.latency_s = latency_s
        self.jitter_s = jitter_s
        self.speeds = [bytes_per_s]  # the lowest holds
        self.speed = bytes_per_s
        self.cuts = 0
        self.free_at = 0.0
        self.impaired_at = -1e9  # when it was last cut or slow
        self.pipes: list[Pipe] = []
        self.tamperer: Tamperer | None = None

    def cut(self) -> None:
        """From now on nothing arrives."""
        self.cuts += 1

    def mend(self) -> None:
        """One cut less; without any, what was held back arrives."""
        self.cuts -= 1
        self.impaired_at = self.clock.now
        if not self.cuts:
            self.flow()

    def slow_down(self, bytes_per_s: float) -> None:
        """One more limit."""
        self.speeds.append(bytes_per_s)
        self._change_speed()

    def speed_up(self, bytes_per_s: float) -> None:
        """One limit less."""
        self.speeds.remove(bytes_per_s)
        self.impaired_at = self.clock.now
        self._change_speed()

    def _change_speed(self) -> None:
        self.speed = min(self.speeds)
        self.free_at = self.clock.now
        for pipe in self.pipes:
            pipe.plan_again()

    @property
    def impaired(self) -> bool:
        """Cut or slow at this moment."""
        return self.cuts > 0 or len(self.speeds) > 1

    def flow(self) -> None:
        """Let all connections go on as far as they can."""
        for pipe in [*self.pipes]:
            pipe.flow()


class Pipe:
    """One direction of a connection. `undelivered`: bytes that the reader has not read yet."""

    def __init__(self, line: Line, source: Socket, target: Socket, *, failure_timeout_s: float) -> None:
        self.undelivered = 0
        self.drain_wanted_below: int | None = None
        self.back: Pipe | None = None  # the other direction
        self._line = line
        self._source = source
        self._target = target
        self._failure_timeout_s = failure_timeout_s
        self._pieces: deque[bytes | Numbers | None] = deque()  # None: the source has closed
        self._due = 0  # pieces whose time has come
        self._plans = 0  # how often arrivals were planned anew
        self._last_arrival = 0.0
        self._stalled_at: float | None = None
        self._held: list[bytes] = []
        self._over = False
        line.pipes.append(self)

    def send(self, frame: bytes) -> None:
        """Put one whole frame on its way."""
        line = self._line
        if line.tamperer:
            for piece in line.tamperer.pass_on(frame, self._held):
                self._put(piece)
        elif self._held:
            pieces = [frame, *self._held]
            self._held.clear()
            for piece in pieces:
                self._put(piece)
        elif line.random() < PIECES_SHARE:
            middle = line.chance.randrange(1, len(frame))
            self._put(frame[:middle])
            self._put(frame[middle:])
        else:
            self._put(frame)

    def send_floats(self, head: bytes, numbers: memoryview) -> None:
        """Put a whole frame on its way whose numbers a socket may read now or when their turn comes."""
        line, frame = self._line, Numbers(head, numbers)
        if line.tamperer or self._held or line.random() < NUMBERS_AT_ONCE_SHARE:
            self.send(frame.read())
        else:
            self._put(frame)

    def finish(self) -> None:
        """The source sends no more."""
        for piece in self._pieces:
            if isinstance(piece, Numbers):
                piece.read()
        self._put(None)

    def _put(self, piece: bytes | Numbers | None) -> None:
        if not self._over:
            self._pieces.append(piece)
            self._plan(0 if piece is None else len(piece))

    def _plan(self, size: int) -> None:
        line = self._line
        clock = line.clock
        free_at = line.free_at if line.free_at > clock.now else clock.now
        line.free_at = free_at = free_at + size / line.speed
        arrival = free_at + line.latency_s + line.jitter_s * line.random()
        self._last_arrival = max(self._last_arrival, arrival)
        self.undelivered += size
        clock.at(self._last_arrival, self._arrive, self._plans)

    def plan_again(self) -> None:
        """The line's speed has changed: so do the times of all that is under way."""
        self._plans += 1
        self._last_arrival = self._line.clock.now
        for piece in list(self._pieces)[self._due :]:
            size = 0 if piece is None else len(piece)
            self.undelivered -= size
            self._plan(size)

    def _arrive(self, plans: int) -> None:
        if not self._over and plans == self._plans:
            self._due += 1
            self.flow()

    def flow(self) -> None:
        """Deliver what is due, unless the line is cut or the target does not read."""
        while self._due and not self._over:
            if self._line.cuts:
                self._stall()
                return
            self._stalled_at = None
            if self._target.closing:
                self._refuse()
                return
            if not self._target.reading:
                return
            self._due -= 1
            self._deliver(self._pieces.popleft())

    def _deliver(self, piece: bytes | Numbers | None) -> None:
        if isinstance(piece, Numbers):
            piece = piece.read()
        if piece is None:
            self.end()
            self._target.ended("closed by the peer")
        elif piece is BROKEN:
            self.reset()
        else:
            self.undelivered -= len(piece)
            self._target.bytes_arrived(piece)
            if self.drain_wanted_below is not None:
                self.check_drained()

    def check_drained(self) -> None:
        """Tell the source, if it waits for that, that little enough is on its way."""
        if self.drain_wanted_below is not None and self.undelivered <= self.drain_wanted_below:
            self.drain_wanted_below = None
            self._line.clock.after(0.0, self._source.drained)

    def _stall(self) -> None:
        if self._stalled_at is None:
            self._stalled_at = now = self._line.clock.now
            self._line.clock.after(USER_TIMEOUT_PER_TIMEOUT * self._failure_timeout_s, self._give_up, now)

    def _give_up(self, stalled_at: float) -> None:
        if self._stalled_at == stalled_at and not self._over:
            self.end()
            self._source.ended("timed out")

    def _refuse(self) -> None:
        """The target's kernel answers bytes that nobody wants with a reset, which a cut line swallows."""
        for _ in range(self._due):
            self._pieces.popleft()
        self._due = 0
        assert self.back is not None
        if not self.back._line.cuts:
            self._line.clock.after(self.back._line.latency_s, self._refused)

    def _refused(self) -> None:
        if not self._over:
            self.end()
            self._source.ended("reset by the peer")

    def reset(self) -> None:
        """The connection breaks: both sides learn it, and what is on its way is lost."""
        assert self.back is not None
        self.end()
        self.back.end()
        self._target.ended("reset")
        self._source.ended("reset")

    def source_died(self) -> None:
        """The source's kernel ends the connection, and says so unless the line is cut."""
        self.end()
        if self.back is not None and not self._line.cuts:
            self._line.clock.after(self._line.latency_s, self.back._refused)

    def end(self) -> None:
        """Nothing is delivered any more."""
        if not self._over:
            self._over = True
            self._pieces.clear()
            self._line.pipes.remove(self)


class Endpoint:
    """One end of a connection: what `net.connection.Connection` is to the real mesh."""

    def __init__(self, owner: EndpointOwner, *, number: int, dialled: bool) -> None:
        self.owner = owner
        self.number = number  # of the node at the other end
        self.dialled = dialled
        self.closing = False
        self.reader = FrameReader()
        self.out: Pipe | None = None
        self._finished = False

    @property
    def reading(self) -> bool:
        """Socket."""
        return not self.owner.paused

    def send(self, frame: bytes) -> None:
        """Hand over one whole frame; nothing is sent on a connection that is closing."""
        if not self.closing and not self._finished and self.out is not None:
            self.out.send(frame)

    def send_floats(self, head: bytes, numbers: memoryview) -> None:
        """Hand over one whole frame whose numbers stay in the sender's memory."""
        if not self.closing and not self._finished and self.out is not None:
            self.out.send_floats(head, numbers)

    def report_drained(self, below: int) -> None:
        """Call the owner once so little is on its way, at the next turn at the earliest."""
        if self.out is not None:
            self.out.drain_wanted_below = below
            self.out.check_drained()

    def close(self) -> None:
        """Read no more, and close after what was handed over has arrived."""
        self.finish()
        self.closing = True

    def finish(self) -> None:
        """Send no more; go on reading."""
        if not self._finished and self.out is not None:
            self._finished = True
            self.out.finish()

    def die(self) -> None:
        """The process is gone."""
        self.closing = True
        if self.out is not None:
            self.out.source_died()

    def bytes_arrived(self, piece: bytes) -> None:
        """Socket."""
        reader = self.reader
        while piece and not self.closing:
            place = reader.get_buffer()
            count = min(len(piece), len(place))
            place[:count], piece = piece[:count], piece[count:]
            reader.received(count)
            self.owner.bytes_received(self)

    def ended(self, words: str) -> None:
        """Socket."""
        if not self.closing:
            self.close()
            self.owner.when_running(self.owner.connection_lost, self, words)

    def drained(self) -> None:
        """Socket."""
        self.owner.when_running(self.owner.connection_drained, self)


class EndpointOwner(Protocol):
    """The process that an endpoint belongs to."""

    paused: bool

    def bytes_received(self, endpoint: Endpoint) -> None: ...
    def connection_lost(self, endpoint: Endpoint, words: str) -> None: ...
    def connection_drained(self, endpoint: Endpoint) -> None: ...
    def when_running(self, action: Callable[..., object], *arguments: object) -> None: ...


def connect(
    forth: Line, back: Line, dialler: Endpoint, acceptor: Endpoint, *, failure_timeout_s: float
) -> None:
    """Join two endpoints by a connection."""
    dialler.out = Pipe(forth, dialler, acceptor, failure_timeout_s=failure_timeout_s)
    acceptor.out = Pipe(back, acceptor, dialler, failure_timeout_s=failure_timeout_s)
    dialler.out.back, acceptor.out.back = acceptor.out, dialler.out
