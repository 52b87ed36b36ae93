"""Work that may hang in the kernel, in threads for which nobody waits.

asyncio's own threads would do, but for the end: a loop that closes, and a process that ends, wait for each of
them, and a disk or a name server that is gone gives no answer for a long time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


async def in_daemon_thread(name: str, work: Callable[[], _Result]) -> _Result:
    """What `work` returns or raises, from a thread of its own called `name`; cancelled, it goes on alone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def settle(done: concurrent.futures.Future[_Result]) -> None:
        if future.cancelled():
            return
        failure = done.exception()
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(done.result())

    def run() -> None:
        done: concurrent.futures.Future[_Result] = concurrent.futures.Future()
        try:
            done.set_result(work())
        except BaseException as error:  # whoever waits for it gets it
            done.set_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(settle, done)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
