"""Stores of shards: a folder or a URL, with a bounded number of attempts."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Generic, NoReturn, Protocol, TypeVar, cast

from p2psgd.base.errors import ExitCode, P2psgdError, StoreError, UsageError, words_of
from p2psgd.base.formatting import how_to_install

# ----------------------------------------------------------------------------
# Where shards are: a folder, or any place that fsspec can read, such as s3://bucket/prefix.
#
# One file at a time and one attempt each: what is tried again, and how often, is fetch.py's. fsspec is
# imported only for URLs.


PIECE_BYTES: Final = 2 << 20  # read at a time; a slow link brings it well before an attempt counts as stalled
_URL: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_EXTRAS: Final = {"s3": "s3", "s3a": "s3"}  # which extra has what fsspec needs for a scheme; else "data"


class Missing(Exception):
    """The store reports that there is no such file, or refuses access: asking again does not help."""


class Forbidden(Missing):
    """The store refuses access with these credentials, which a person may fix meanwhile."""


class Unavailable(Exception):
    """The store returned no file, or not all of it, this time."""


class Store(Protocol):
    """A place that reads files, and writes the list."""

    @property
    def place(self) -> str:
        """The folder or URL, for messages."""

    @property
    def local(self) -> Path | None:
        """The folder, if the place is one on this machine."""

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file below the place, piece by piece; raises Missing or Unavailable."""

    def names(self) -> list[str]:
        """Return all files below the place, in order; raises Missing or Unavailable."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file there; raises Missing or Unavailable."""


def is_url(place: str) -> bool:
    """Return True for a URL, False for a path of this machine."""
    return _URL.match(place) is not None


def open_store(place: str) -> Store:
    """Return the store at a folder or URL; UsageError if nothing installed reads it."""
    if place.startswith("file://"):
        return FolderStore(Path(place.removeprefix("file://")))
    return RemoteStore(place) if is_url(place) else FolderStore(Path(place).expanduser())


class FolderStore:
    """A folder of this machine, or one that is mounted here."""

    def __init__(self, folder: Path) -> None:
        self.local: Path | None = folder
        self._folder = folder
        self.place = str(folder)

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a file of the folder, piece by piece."""
        try:
            with (self._folder / name).open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except OSError as error:
            _fail(error)

    def names(self) -> list[str]:
        """Return all files, also in subfolders."""
        if not self._folder.is_dir():
            raise Missing("there is no such folder")
        try:
            paths = [path for path in self._folder.rglob("*") if path.is_file()]
        except OSError as error:
            _fail(error)
        return sorted(path.relative_to(self._folder).as_posix() for path in paths)

    def write(self, name: str, content: bytes) -> None:
        """Write a file that appears whole or not at all."""
        path = self._folder / name
        fresh = path.with_name(f".{path.name}.new")
        try:
            fresh.write_bytes(content)
            fresh.replace(path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            _fail(error)


class RemoteStore:
    """A place that fsspec reads; its libraries find credentials and endpoints where they look for them."""

    local: Path | None = None

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        scheme = url.split("://", 1)[0]
        extra = _EXTRAS.get(scheme, "data")
        try:
            import fsspec  # an extra, which folders do without

            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(self.place, use_listings_cache=False)
        except ImportError as error:
            words = f"{url} cannot be read here: {error}; {how_to_install(extra)}"
            raise UsageError(words, ExitCode.CONFIGURATION) from None
        except ValueError as error:
            raise UsageError(f"{url} is no URL that fsspec can read: {error}") from None
        self._root = self._root.rstrip("/")

    def read(self, name: str) -> Iterator[bytes]:
        """Yield an object, piece by piece."""
        try:
            with cast(
                BinaryIO, self._files.open(f"{self._root}/{name}", "rb", block_size=PIECE_BYTES)
            ) as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except Exception as error:  # of whatever library is behind it
            _fail(error)

    def names(self) -> list[str]:
        """Return all objects below the place."""
        try:
            found: list[str] = self._files.find(self._root)
        except Exception as error:  # of whatever library is behind it
            _fail(error)
        return sorted(path.removeprefix(f"{self._root}/") for path in found)

    def write(self, name: str, content: bytes) -> None:
        """Write an object as the store does it: whole or not at all in an object store."""
        try:
            self._files.pipe_file(f"{self._root}/{name}", content)
        except Exception as error:  # of whatever library is behind it
            _fail(error)


def _fail(error: Exception) -> NoReturn:
    words = words_of(error) if isinstance(error, OSError) else str(error)
    words = " ".join(words.split())[:300] or type(error).__name__
    if isinstance(error, FileNotFoundError):
        raise Missing("there is no such file") from None
    if isinstance(error, PermissionError):
        raise Forbidden(f"it may not be read: {words}") from None
    raise Unavailable(words) from None


# ----------------------------------------------------------------------------
# Work that may fail or hang, tried again a bounded number of times, in threads for which nobody waits.
#
# An attempt that does not move for a while is left alone, and another one begun; what it still brings counts
# no more. A store or a disk that hangs so holds up nothing but this.


PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)  # before each attempt after the first
STALL_S: Final = 60.0  # without a byte: this attempt brings none any more
THREADS_MAX: Final = 400  # of this process at work: more than 65 shards in 5 attempts each, all of which hang
THREAD: Final = "p2psgd-data"

Result = TypeVar("Result")


class Moved(Protocol):
    """Called by the work whenever a piece has arrived.

    `whole` is True when everything has arrived and the rest is computing, which may take as long as it needs.
    """

    def __call__(self, *, whole: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The pauses between attempts to read a store, and the time without progress after which an attempt ends.

    Attributes:
        pauses_s: Seconds before each further attempt; there is one attempt more than pauses.
        stall_s: Seconds without a byte after which an attempt counts as failed.
    """

    pauses_s: tuple[float, ...] = PAUSES_S
    stall_s: float = STALL_S


class Attempts(Generic[Result]):
    """Repeated attempts at `work(moved)`, which calls `moved` whenever a piece has arrived."""

    def __init__(self, work: Callable[[Moved], Result], what: str, place: str, patience: RetryPolicy) -> None:
        """Begin. The messages name `what` and `place`."""
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
        """Wait for the end; return False if it has not come within the timeout."""
        if not self._done.wait(timeout_s) and time.monotonic() - self._moved > self._patience.stall_s:
            self._fail(self._attempt, f"nothing has come for {self._patience.stall_s:g} s")
        return self._done.is_set()

    def result(self) -> Result:
        """Return the work's result, after the end.

        Raises StoreError if no attempt succeeded, or the error of p2psgd or Missing that the work raised.
        """
        assert self._done.is_set()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def give_up(self) -> None:
        """Give up: the running attempt ends with its next piece, and no other begins."""
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
        """Note that this attempt has failed: begin the next one, if one is left."""
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
