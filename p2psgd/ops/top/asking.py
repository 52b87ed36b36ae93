"""Asking a node for its status again and again, over its control socket or over HTTP, in a thread of its own:
the screen never waits for an answer.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from p2psgd.errors import ExitCode, P2psgdError, UsageError
from p2psgd.ipc.control_client import ControlClient
from p2psgd.ops import numerals
from p2psgd.ops.figures import Status

HTTP_TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
_URL: Final = re.compile(r"(http://(?:\[[\w:.%-]+\]|[\w.-]+)(?::\d{1,5})?)(?:/[^?#]*)?", re.ASCII)
SILENT_S: Final = 3.0  # beyond the usual pause; a shorter silence is no news


class ControlSource:
    """The status over a control socket; connects anew after the daemon has gone. Raises P2psgdError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._client: ControlClient | None = None

    def __call__(self) -> Status:
        try:
            if self._client is None:
                self._client = ControlClient(self._path)
            status: Status = self._client.request("status")["status"]
            return status
        except (P2psgdError, OSError):
            if self._client is not None:
                self._client.close()
                self._client = None
            raise


class HttpSource:
    """The same from where `--http` shows a node; UsageError if that is no address. Raises P2psgdError."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise UsageError(f"--url {url!r:.80} is no address of a node: give http://127.0.0.1:9400")
        self._url = f"{found[1]}/status.json"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __call__(self) -> Status:
        try:
            with self._opener.open(self._url, timeout=HTTP_TIMEOUT_S) as answer:
                status = json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                raise UsageError(f"{self._url}: {error.code} {error.reason}", ExitCode.TEMPORARY) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            why = str(getattr(reason, "strerror", None) or reason).lower()
            raise UsageError(f"no node answers at {self._url}: {why}", ExitCode.TEMPORARY) from None
        except (http.client.HTTPException, ValueError, RecursionError):
            status = None
        if not isinstance(status, Mapping) or not isinstance(status.get("node"), str):
            raise UsageError(f"what answers at {self._url} is no p2psgd node", ExitCode.DATA)
        return status


@dataclass(frozen=True, slots=True)
class Heard:
    """The last status, when it came (seconds, monotonic), and how many there were; what has gone wrong since,
    and since when.
    """

    status: Status | None = None
    at: float = 0.0
    count: int = 0
    error: Exception | None = None
    error_since: float = 0.0
    error_clock: float = 0.0  # the same as Unix time

    def trouble(self, now: float, *, every_s: float) -> str:
        """Why the status is an old one, in a sentence; empty if it is not."""
        if self.error is not None:
            since = time.strftime("%H:%M:%SZ", time.gmtime(self.error_clock))
            lasts = numerals.duration(now - self.error_since)
            return f"the daemon is gone since {since} ({lasts}), trying again"
        if self.status is not None and now - self.at > every_s + SILENT_S:
            return f"the daemon has not answered for {numerals.duration(now - self.at)}"
        return ""


class Asker:
    """Asks `source` every `every_s` seconds as long as it is open; `heard` is what has come of it so far."""

    def __init__(self, source: Callable[[], Status], *, every_s: float) -> None:
        self.heard = Heard()  # replaced whole: one thread writes, others read
        self._source = source
        self._every_s = every_s
        self._over = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="asking", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()  # a question may still be open; the thread ends with it, or with this process

    def next(self, heard: Heard, timeout_s: float) -> Heard:
        """Wait until there is more than `heard`, for so long; return what there is."""
        if self.heard is heard:
            self._changed.wait(timeout_s)
        self._changed.clear()
        return self.heard

    def _ask_on(self) -> None:
        while True:
            self.heard = self._ask(self.heard)
            self._changed.set()
            if self._over.wait(self._every_s):
                return

    def _ask(self, before: Heard) -> Heard:
        try:
            status = self._source()
        except (P2psgdError, OSError) as error:
            since, clock = (before.error_since, before.error_clock) if before.error else _now()
            return Heard(before.status, before.at, before.count, error, since, clock)
        return Heard(status, time.monotonic(), before.count + 1)


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()


def raise_error(heard: Heard) -> None:
    """At the beginning, what goes wrong is told at once: a P2psgdError."""
    match heard.error:
        case None:
            return
        case P2psgdError():
            raise heard.error
        case error:
            raise UsageError(f"the node cannot be asked: {error}", ExitCode.TEMPORARY)
