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

from p2psgd.errors import ExitCode, P2psgdError, StoreError, UsageError, words_of

# ----------------------------------------------------------------------------
# Where shards are: a folder, or any place that fsspec can read, such as s3://bucket/prefix.
#
# One file at a time and one attempt each: what is tried again, and how often, is fetch.py's. fsspec is
# imported only for URLs.


PIECE_BYTES: Final = 2 << 20  # read at a time; a slow link brings it well before an attempt counts as stalled
_URL: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_EXTRAS: Final = {"s3": "s3", "s3a": "s3"}  # which extra has what fsspec needs for a scheme; else "data"


class Missing(Exception):
    """The store says that there is no such file, or that it is not for us: to ask again does not help."""


class Forbidden(Missing):
    """It is not for us: not with these credentials, which a person may mend meanwhile."""


class Unavailable(Exception):
    """The store gave no file, or not all of it, this time."""


class Store(Protocol):
    """Reads, and writes the list."""

    @property
    def place(self) -> str:
        """For people: the folder or URL."""

    @property
    def local(self) -> Path | None:
        """The folder, if it is one on this machine."""

    def read(self, name: str) -> Iterator[bytes]:
        """The content of a file below the place, piece by piece; Missing or Unavailable."""

    def names(self) -> list[str]:
        """All files below the place, in order; Missing or Unavailable."""

    def write(self, name: str, content: bytes) -> None:
        """Put a file there; Missing or Unavailable."""


def is_url(place: str) -> bool:
    """Whether it is a URL, and no path of this machine."""
    return _URL.match(place) is not None


def open_store(place: str) -> Store:
    """The store at a folder or URL; UsageError if there is nothing that reads it."""
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
        """Of a file in it."""
        try:
            with (self._folder / name).open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except OSError as error:
            _fail(error)

    def names(self) -> list[str]:
        """Of all files, also in folders within."""
        if not self._folder.is_dir():
            raise Missing("there is no such folder")
        try:
            paths = [path for path in self._folder.rglob("*") if path.is_file()]
        except OSError as error:
            _fail(error)
        return sorted(path.relative_to(self._folder).as_posix() for path in paths)

    def write(self, name: str, content: bytes) -> None:
        """It appears whole or not at all."""
        path = self._folder / name
        fresh = path.with_name(f".{path.name}.new")
        try:
            fresh.write_bytes(content)
            fresh.replace(path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            _fail(error)


class RemoteStore:
    """What fsspec reads; credentials and endpoints come from where its libraries look for them."""

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
            words = f"{url} cannot be read here: {error}; pip install 'p2psgd[{extra}]'"
            raise UsageError(words, ExitCode.CONFIGURATION) from None
        except ValueError as error:
            raise UsageError(f"{url} is no URL that fsspec can read: {error}") from None
        self._root = self._root.rstrip("/")

    def read(self, name: str) -> Iterator[bytes]:
        """Of an object."""
        try:
            with cast(
                BinaryIO, self._files.open(f"{self._root}/{name}", "rb", block_size=PIECE_BYTES)
            ) as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except Exception as error:  # of whatever library is behind it
            _fail(error)

    def names(self) -> list[str]:
        """Of all objects below it."""
        try:
            found: list[str] = self._files.find(self._root)
        except Exception as error:  # of whatever library is behind it
            _fail(error)
        return sorted(path.removeprefix(f"{self._root}/") for path in found)

    def write(self, name: str, content: bytes) -> None:
        """As the store does it: whole or not at all, where that is an object store."""
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
