"""Fetch shards from a cache on this machine's disk, else from the store."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from p2psgd.base.errors import ExitCode, StoreError, UsageError, cannot, words_of
from p2psgd.base.formatting import say
from p2psgd.data.shard_list import (
    LIST_BYTES_MAX,
    LIST_NAME,
    Arrays,
    Shard,
    ShardList,
    bad_shard,
    load_shard,
    parse_list,
)
from p2psgd.data.store import Attempts, Forbidden, Missing, Moved, RetryPolicy, Store, Unavailable

# ----------------------------------------------------------------------------
# Shards on this machine's disk: files named by the hash of their content, whole or not there.
#
# Several trainers of a machine, and several data sets, may share a cache: the one that has fetched a shard
# renames it into its place, and what was used least recently goes when there is no room. A file that goes
# while another trainer reads it stays readable there. Each reader checks what it reads by the name, every
# time.


CACHE_BYTES: Final = 10 * 1024**3
FOLDER_VARIABLE: Final = "P2PSGD_CACHE"
BYTES_VARIABLE: Final = "P2PSGD_CACHE_BYTES"
STALE_S: Final = 3600.0  # a file that nobody has gone on writing for so long is of a trainer that died
WRITING: Final = ".part"
PIECE_BYTES: Final = 8 << 20

CacheMoved = Callable[[], None]


def default_cache() -> Path:
    """Return $P2PSGD_CACHE, else $XDG_CACHE_HOME/p2psgd/shards, else the same below ~/.cache."""
    told, base = os.environ.get(FOLDER_VARIABLE, ""), os.environ.get("XDG_CACHE_HOME", "")
    try:
        if told:
            return Path(told).expanduser()
        return Path(base if base.startswith("/") else Path.home() / ".cache") / "p2psgd" / "shards"
    except RuntimeError as error:
        why = str(error).rstrip(".")
        words = f"there is no place for a cache of shards: {why}; name one in {FOLDER_VARIABLE}"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


def default_bytes() -> int:
    """Return $P2PSGD_CACHE_BYTES, else CACHE_BYTES."""
    told = os.environ.get(BYTES_VARIABLE, "")
    try:
        return int(told) if told else CACHE_BYTES
    except ValueError:
        words = f"{BYTES_VARIABLE}={told:.40} is refused: give a number of bytes"
        raise UsageError(words, ExitCode.CONFIGURATION) from None


def hash_of(content: bytes, moved: CacheMoved) -> str:
    """Return the SHA-256 in hex; `moved` is called again and again."""
    found = hashlib.sha256()
    for piece in _pieces(content):
        moved()
        found.update(piece)
    return found.hexdigest()


class Cache:
    """A folder of at most `bytes_max`, apart from the file that is being written."""

    def __init__(self, folder: Path, *, bytes_max: int = CACHE_BYTES) -> None:
        if bytes_max < 1:
            raise UsageError(f"a cache of {bytes_max} bytes holds nothing: give more")
        self.folder = folder
        self.bytes_max = bytes_max
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot(f"use {folder} as a cache for shards", error) from None

    def read(self, sha256: str, moved: CacheMoved = lambda: None) -> bytes | None:
        """Return the content that hashes to this; None if it is not there. One that has changed is thrown
        away.

        `moved` is called as often as a piece was read, or hashed.
        """
        path, content = self.folder / sha256, io.BytesIO()
        try:
            with path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    moved()
                    content.write(piece)
        except OSError:
            return None
        found = content.getvalue()
        if hash_of(found, moved) != sha256:
            self._drop(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def write(self, sha256: str, content: bytes, moved: CacheMoved = lambda: None) -> None:
        """Keep this content, which hashes to that, unless there is no room even in an empty cache. OSError if
        the disk does not take it.
        """
        if len(content) > self.bytes_max:
            return
        path = self.folder / f"{sha256}.{os.getpid()}.{time.monotonic_ns()}{WRITING}"
        try:
            with path.open("wb") as file:
                for piece in _pieces(content):
                    moved()
                    file.write(piece)
            self._make_room(len(content), besides=path)
            path.replace(self.folder / sha256)
        finally:
            self._drop(path)

    def _make_room(self, wanted_bytes: int, *, besides: Path) -> None:
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another trainer has removed it
                facts = path.stat()
                if path.suffix == WRITING:
                    if path != besides and time.time() - facts.st_mtime > STALE_S:
                        path.unlink(missing_ok=True)
                elif len(path.name) == 64:  # nothing else is ours
                    found.append((facts.st_mtime, facts.st_size, path))
        left_bytes = sum(size for _, size, _ in found) + wanted_bytes
        for _, size, path in sorted(found):
            if left_bytes <= self.bytes_max:
                return
            self._drop(path)
            left_bytes -= size

    def _drop(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _pieces(content: bytes) -> Iterator[memoryview]:
    view = memoryview(content)
    return (view[begin : begin + PIECE_BYTES] for begin in range(0, len(view), PIECE_BYTES))


# ----------------------------------------------------------------------------
# Brings shards, and the list of them, into memory in the background: from the cache, else from the store,
# checked by size and hash.


LOOK_EVERY_S: Final = 0.25
SAY_EVERY_S: Final = 5.0  # on stderr, where nothing else tells of a store that hangs
_Result = TypeVar("_Result")


class Fetch:
    """The fetch of one shard, from now on. Without `cache` the store is as near as a cache would be."""

    def __init__(self, store: Store, cache: Cache | None, shard: Shard, patience: RetryPolicy) -> None:
        self.shard, self.place = shard, store.place
        self._store, self._cache = store, cache
        self._attempts = Attempts(self._bring, f"shard {shard.name}", store.place, patience)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return False if it has not come within the timeout."""
        return self._attempts.wait(timeout_s)

    def result(self) -> Arrays:
        """Return the arrays, after the end; StoreError if the store failed, UsageError for a bad shard."""
        try:
            return self._attempts.result()
        except Missing as error:
            raise StoreError(self.place, f"does not give shard {self.shard.name}: {error}") from None

    def give_up(self) -> None:
        """Stop reading."""
        self._attempts.give_up()

    def _bring(self, moved: Moved) -> Arrays:
        content = None if self._cache is None else self._cache.read(self.shard.sha256, moved)
        if content is None:
            content = read_checked(self._store, self.shard, moved)
            self._keep(content, moved)
        moved(whole=True)
        arrays = load_shard(content, self.shard.name)
        if {name: (str(array.dtype), array.shape) for name, array in arrays.items()} != {
            name: (array.dtype, array.shape) for name, array in self.shard.arrays.items()
        }:
            words = f"its arrays are others than {LIST_NAME} tells; make that anew with p2psgd data index"
            raise bad_shard(self.shard.name, words)
        return arrays

    def _keep(self, content: bytes, moved: Moved) -> None:
        """Keep a file in the cache; without one, or where its disk has no room, training goes on all the
        same.
        """
        if self._cache is None:
            return
        try:
            self._cache.write(self.shard.sha256, content, moved)
        except OSError as error:
            words = f"shard {self.shard.name} is not kept in {self._cache.folder}: {words_of(error)}"
            say(words)


def fetch_list(store: Store, patience: RetryPolicy) -> ShardList:
    """Return the list of a store's shards; UsageError if there is none, StoreError if the store fails."""
    try:
        content = insist(
            lambda moved: read_whole(store, LIST_NAME, moved, bytes_max=LIST_BYTES_MAX),
            LIST_NAME,
            store,
            patience,
        )
    except Forbidden as error:
        raise StoreError(store.place, f"does not give {LIST_NAME}: {error}") from None
    except Missing as error:
        raise UsageError(
            f"{store.place}/{LIST_NAME}, the list of its shards, cannot be had: {error}; "
            f"make one with p2psgd data index {store.place}",
            ExitCode.DATA,
        ) from None
    return parse_list(content, f"{store.place}/{LIST_NAME}")


def insist(work: Callable[[Moved], _Result], what: str, store: Store, patience: RetryPolicy) -> _Result:
    """Return what the store gives, after several attempts if needed; waits. See Attempts.result."""
    attempts = Attempts(work, what, store.place, patience)
    begun = said_at = time.monotonic()
    while not attempts.wait(LOOK_EVERY_S):
        now = time.monotonic()
        if now - said_at >= SAY_EVERY_S:
            said_at = now
            words = f"{store.place}: waiting for {what}, {now - begun:.0f} s so far{attempts.last_failure}"
            say(words)
    return attempts.result()


def read_checked(store: Store, shard: Shard, moved: Moved) -> bytes:
    """Return a shard's content, with the length and hash in the list; raises Unavailable."""
    content = read_whole(store, shard.name, moved, bytes_max=shard.bytes)
    if len(content) != shard.bytes:
        raise Unavailable(f"it has {len(content)} bytes, and {LIST_NAME} tells {shard.bytes}")
    found = hash_of(content, moved)
    if found != shard.sha256:
        raise Unavailable(f"its SHA-256 begins with {found[:12]}, and {LIST_NAME} tells {shard.sha256[:12]}")
    return content


def read_whole(store: Store, name: str, moved: Moved, *, bytes_max: int) -> bytes:
    """Return a file's content; raises Unavailable."""
    content = io.BytesIO()  # which gives its bytes away without a copy
    for piece in store.read(name):
        moved()
        if content.tell() + len(piece) > bytes_max:
            raise Unavailable(f"it has more than {bytes_max} bytes")
        content.write(piece)
    return content.getvalue()
