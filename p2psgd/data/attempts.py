"""Work that may fail or hang, tried again a bounded number of times, in threads for which nobody waits.

An attempt that does not move for a while is left alone, and another one begun; what it still brings counts no
more. A store or a disk that hangs so holds up nothing but this.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from p2psgd.data.store import Missing, Unavailable
from p2psgd.errors import P2psgdError, StoreError

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)  # before each attempt after the first
STALL_S: Final = 60.0  # without a byte: this attempt brings none any more
THREADS_MAX: Final = 400  # of this process at work: more than 65 shards in 5 attempts each, all of which hang
THREAD: Final = "p2psgd-data"

Result = TypeVar("Result")


class Moved(Protocol):
    """What work calls as often as something has come; `whole`: all has, and what is left only computes, as
    long as it takes.
    """

    def __call__(self, *, whole: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """Pauses between attempts, of which there is one more, and how long one may bring nothing."""

    pauses_s: tuple[float, ...] = PAUSES_S
    stall_s: float = STALL_S


class Attempts(Generic[Result]):
    """At `work(moved)`, which calls `moved` as often as something has come."""

    def __init__(self, work: Callable[[Moved], Result], what: str, place: str, patience: Patience) -> None:
        """Begin. `what` is wanted of `place`, for people."""
        self._work, self._what, self._place, self._patience = work, what, place, patience
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._results: list[Result] = []
        self._error: P2psgdError | Missing | None = None
        self.last_failure = ""  # for people: "; " and why the latest attempt that failed did
        self._attempt = 0  # the latest
        self._moved = 0.0
        if sum(thread.name == THREAD for thread in threading.enumerate()) >= THREADS_MAX:
            raise StoreError(place, f"hangs: {THREADS_MAX} attempts to read it have not ended")
        self._begin(pause_s=0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait so long for the end; False if it has not come."""
        if not self._done.wait(timeout_s) and time.monotonic() - self._moved > self._patience.stall_s:
            self._fail(self._attempt, f"nothing has come for {self._patience.stall_s:g} s")
        return self._done.is_set()

    def result(self) -> Result:
        """After the end: what the work returned; StoreError if no attempt did, or another error of p2psgd
        that it raised. Missing, if it raised that.
        """
        assert self._done.is_set()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def give_up(self) -> None:
        """It is wanted no more: the attempt at work ends as soon as something comes, no other is begun."""
        self._end(self._attempt, StoreError(self._place, f"was not waited for to give {self._what}"))

    def _begin(self, pause_s: float) -> None:
        self._attempt += 1
        self._moved = time.monotonic() + pause_s
        arguments = (self._attempt, pause_s)
        threading.Thread(target=self._run, args=arguments, name=THREAD, daemon=True).start()

    def _run(self, attempt: int, pause_s: float) -> None:
        time.sleep(pause_s)
        try:
            result = self._work(partial(self._move, attempt))
        except Unavailable as error:
            self._fail(attempt, str(error))
        except (P2psgdError, Missing) as error:
            self._end(attempt, error)
        except BaseException as error:  # a bug of ours, which must not look like a store that hangs
            self._end(attempt, P2psgdError(f"{self._what} of {self._place}: {error!r}"))
            raise
        else:
            with self._lock:
                if attempt == self._attempt and not self._done.is_set():
                    self._results.append(result)
                    self._done.set()

    def _move(self, attempt: int, *, whole: bool = False) -> None:
        with self._lock:
            if attempt != self._attempt or self._done.is_set():
                raise Unavailable("it is wanted no more")
            self._moved = math.inf if whole else time.monotonic()

    def _fail(self, attempt: int, words: str) -> None:
        """This attempt has: begin the next one, if one is left."""
        with self._lock:
            if attempt != self._attempt or self._done.is_set():
                return
            self.last_failure = f"; attempt {attempt} failed: {words}"
            if attempt <= len(self._patience.pauses_s):
                self._begin(self._patience.pauses_s[attempt - 1])
                return
        times = f"{attempt} attempts" if attempt > 1 else "an attempt"
        self._end(attempt, StoreError(self._place, f"does not give {self._what} in {times}: {words}"))

    def _end(self, attempt: int, error: P2psgdError | Missing) -> None:
        with self._lock:
            if attempt == self._attempt and not self._done.is_set():
                self._error = error
                self._done.set()
