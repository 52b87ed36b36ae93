"""Streams and events. What a stream was given is done, in its order, when somebody waits for it; or, with
CUDA_ON_HOST_STREAMS=eager and on any stream but the default one, at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

_current = threading.local()


class Stream:
    """Launches and copies ordered onto it; all else is done at once, after what its stream holds so far."""

    null: Stream
    _made = 0

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self.is_non_blocking = non_blocking
        Stream._made += 1
        self.ptr = 0 if null else Stream._made
        self._waiting: deque[Callable[[], None]] = deque()
        self._ordered = self._done = 0
        _streams[self.ptr] = self

    def order(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        self._ordered += 1
        if self.ptr and os.environ.get("CUDA_ON_HOST_STREAMS") == "eager":
            self.flush()

    def flush(self, up_to: int | None = None) -> None:
        """Do what was ordered before, or up to a place."""
        up_to = self._ordered if up_to is None else up_to
        while self._done < up_to:
            self._done += 1
            self._waiting.popleft()()

    synchronize = flush

    @property
    def done(self) -> bool:
        return not self._waiting

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.order(event.moment())

    def use(self) -> Self:
        _current.stream = self
        return self

    def __enter__(self) -> Self:
        before = getattr(_current, "before", None)
        if before is None:
            before = _current.before = []
        before.append(get_current_stream())
        _current.stream = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.stream = _current.before.pop()


class ExternalStream(Stream):
    """Of a pointer that a Stream has."""

    def __new__(cls, ptr: int) -> Any:
        return _streams[ptr]


class Event:
    """Recorded on a stream: waiting for it does what that stream was given before."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._stream: Stream | None = None
        self._place = 0
        self.time_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._stream = get_current_stream() if stream is None else stream
        self._stream.order(self._note_time)
        self._place = self._stream._ordered

    def _note_time(self) -> None:
        self.time_s = time.perf_counter()

    def moment(self) -> Callable[[], None]:
        """What waits for the event as it is recorded now; recording it again does not change that."""
        stream, place = self._stream, self._place
        return lambda: stream.flush(place) if stream is not None else None

    def synchronize(self) -> None:
        self.moment()()

    @property
    def done(self) -> bool:
        return self._stream is None or self._stream._done >= self._place


_streams: dict[int, Stream] = {}
Stream.null = Stream(null=True)


def get_current_stream() -> Stream:
    return getattr(_current, "stream", Stream.null)


def stream_of(ptr: int) -> Stream:
    return _streams[ptr]


def synchronize_all() -> None:
    for stream in list(_streams.values()):
        stream.flush()


def at_work() -> list[int]:
    """The streams that have been given what they have not done."""
    return [number for number, stream in _streams.items() if not stream.done]
