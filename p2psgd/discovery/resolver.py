"""Questions to the system's resolver, each in a daemon thread: one for each name, and a few at a time.

A question goes on when nobody waits for it any more, so questions to a resolver that does not answer would
pile up: whoever asks the same again meanwhile waits for the same answer.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from functools import partial
from typing import Any, Final

from p2psgd.threads import in_daemon_thread

THREADS_MAX: Final = 8  # of one loop; other questions wait for their turn

_Infos = list[Any]


class _Questions:
    """Of one loop: what the system has been asked and has not answered yet."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], asyncio.Task[_Infos]] = {}
        self._turns = asyncio.Semaphore(THREADS_MAX)

    def ask(self, host: str, port: int) -> asyncio.Task[_Infos]:
        asked = self.open.get((host, port))
        if asked is None:
            asked = self.open[host, port] = asyncio.get_running_loop().create_task(self._ask(host, port))
            asked.add_done_callback(partial(self._answered, (host, port)))
        return asked

    async def _ask(self, host: str, port: int) -> _Infos:
        async with self._turns:
            question = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            return await in_daemon_thread("resolver", question)

    def _answered(self, question: tuple[str, int], asked: asyncio.Task[_Infos]) -> None:
        del self.open[question]
        if not asked.cancelled():
            asked.exception()  # has been seen, also if nobody waits for it


_by_loop: Final = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Questions]()


def questions() -> _Questions:
    """Those of the running loop."""
    return _by_loop.setdefault(asyncio.get_running_loop(), _Questions())


def ask_infos(host: str, port: int) -> asyncio.Task[_Infos]:
    """What socket.getaddrinfo returns for TCP, or raises: OSError, UnicodeError. Others may wait for it too:
    it is to be waited for, not cancelled.
    """
    return questions().ask(host, port)
