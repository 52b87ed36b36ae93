"""Questions to the system's resolver, each in a daemon thread.

The loops' own getaddrinfo would do, but for the end: a loop that closes waits for every answer, and a
resolver that is dead takes half a minute for one. Nobody waits for these threads.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import threading
from typing import Any, Final

THREADS_MAX: Final = 8  # in one process; other questions wait for their turn

_Question = tuple[asyncio.AbstractEventLoop, asyncio.Future[list[Any]], str, int]


class _Resolver:
    """The questions of all loops of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[_Question] = collections.deque()
        self._threads = 0

    def ask(self, question: _Question) -> None:
        with self._lock:
            if self._threads < THREADS_MAX:
                threading.Thread(target=self._work, name="resolver", daemon=True).start()
                self._threads += 1
            self._waiting.append(question)

    def _next(self) -> _Question | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def _work(self) -> None:
        while (question := self._next()) is not None:
            loop, answer, host, port = question
            if answer.cancelled():
                continue
            infos: list[Any] = []
            failure: Exception | None = None
            try:
                infos = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except Exception as error:  # whatever it is, whoever asked is to know
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_tell, answer, infos, failure)


_resolver: Final = _Resolver()


async def get_infos(host: str, port: int) -> list[Any]:
    """What socket.getaddrinfo returns for TCP, or raises: OSError, UnicodeError."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()
    _resolver.ask((loop, answer, host, port))
    return await answer


def _tell(answer: asyncio.Future[list[Any]], infos: list[Any], failure: Exception | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(infos)
    else:
        answer.set_exception(failure)
