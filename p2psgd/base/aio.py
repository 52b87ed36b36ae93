"""Threads that may hang, tasks that may fail, and limits on descriptors and rates, beside the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from p2psgd.base.errors import ExitCode, UsageError

# ----------------------------------------------------------------------------
# Work that may hang in the kernel, in threads for which nobody waits.
#
# asyncio's own threads would do, but for the end: a loop that closes, and a process that ends, wait for each
# of them, and a disk or a name server that is gone gives no answer for a long time.


_Result = TypeVar("_Result")


async def in_daemon_thread(name: str, work: Callable[[], _Result]) -> _Result:
    """Run `work` in a thread of its own called `name`, and return or raise what it does.

    Cancelled, the caller no longer waits, and the thread goes on alone.
    """
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


# ----------------------------------------------------------------------------
# Tasks of the event loop: what becomes of one that fails.


def raise_failure(task: asyncio.Task[None]) -> None:
    """Raise a task's failure in the loop's exception handler, as a done callback: now, not when the task is
    collected, and as the task's, so that an OSError of it is not taken for a connection's.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"the task {task.get_name()} has failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)


# ----------------------------------------------------------------------------
# How many descriptors this process may have open, and which of them are kept for its own files.
#
# The kernel gives a new descriptor the lowest number that is free. So a connection that gets one of the last
# numbers says that all before them are taken. No connection of a peer or a browser keeps such a number: the
# last ones are for votes, checkpoints, a trainer's memory and the like, for which there is room however many
# connect. A trainer and commands of this machine may have the first half of them for their connections.


DESCRIPTORS_MIN: Final = 64  # a daemon with a trainer takes half of them, and what is below is never enough
# A trainer's memory, pipes and state take 20 at most, names that are being looked up 16, files that are being
# written 8; the rest is for commands.
RESERVE_MAX: Final = 64
_RESERVE_SHARE: Final = 3 / 8  # of a small limit


def raise_limit() -> None:
    """Let this process, and what it starts, open as many files as it may at all.

    UsageError if that is too few for a daemon.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN:
        raise UsageError(
            f"only {soft} files may be open at once, and a node needs {DESCRIPTORS_MIN} at the least: raise "
            "the hard limit (ulimit -n, or LimitNOFILE= in the unit)",
            ExitCode.CONFIGURATION,
        )


def connections_end(limit: int, *, local: bool = False) -> int:
    """Return the first descriptor that no connection may have if `limit` files may be open.

    `local`: no connection of this machine's trainer or commands.
    """
    reserve = min(RESERVE_MAX, int(limit * _RESERVE_SHARE))
    return limit - (reserve // 2 if local else reserve)


def is_reserved(descriptor: int, *, local: bool = False) -> bool:
    """Return True if a connection has a descriptor that is kept for this process's own files: close it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= connections_end(limit, local=local)


def has_room() -> bool:
    """Return True if a connection that is opened now may stay."""
    try:
        lowest = os.dup(0)
    except OSError as error:
        return error.errno == errno.EBADF  # then 0 itself is free
    os.close(lowest)
    return not is_reserved(lowest)


def describe_shortage() -> str:
    """Describe why connections are refused, and what helps."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    end = connections_end(limit)
    return (
        f"all of the first {end:,} descriptors are taken, and the last {limit - end} of {limit:,} are kept "
        "for this node's own files: further connections are refused until some end; to let in more, raise "
        "the limit (ulimit -n, or LimitNOFILE= in the unit) and start it again"
    )


# ----------------------------------------------------------------------------
# Token buckets: how often something may happen for each of many keys, such as hosts. Pure.
#
# A bucket holds `burst` tokens at first and gets one back every `interval_s`. Only buckets that are not full
# take memory, and at most KEYS_MAX of them: further keys share one bucket, so that an attacker with many
# keys gains nothing by washing out those of others.


KEYS_MAX: Final = 1024
_THE_REST: Final = ""
_ROUNDING_S: Final = 1e-6


class TokenBuckets:
    """A set of token buckets, all of one size. Times are seconds of a monotonic clock."""

    def __init__(self, *, burst: int, interval_s: float) -> None:
        self._interval_s = interval_s
        self._longest_s = burst * interval_s  # until an empty bucket is full
        self._full_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str, now: float) -> bool:
        """Take a token out of this key's bucket; False if it is empty."""
        if key not in self._full_at and len(self._full_at) >= KEYS_MAX:
            self._full_at = {each: at for each, at in self._full_at.items() if at > now}
            if len(self._full_at) >= KEYS_MAX:
                key = _THE_REST
        full_at = max(self._full_at.get(key, now), now) + self._interval_s
        if full_at - now > self._longest_s + _ROUNDING_S:
            return False
        self._full_at[key] = full_at
        return True


# ----------------------------------------------------------------------------
# Work that waits by yielding seconds, so that it needs no loop: the simulator runs it on its own clock.


async def follow(steps: Generator[float, None, _Result]) -> _Result:
    """Run it to its end, asleep as long as it yields, and return what it does."""
    while True:
        try:
            delay_s = next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result
        await asyncio.sleep(delay_s)
