"""Brings shards, and the list of them, into memory in the background: from the cache, else from the store,
checked by size and hash.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from p2psgd.data.attempts import Attempts, Moved, Patience
from p2psgd.data.cache import Cache, hash_of
from p2psgd.data.formats import Arrays, bad_shard, load_shard
from p2psgd.data.shard_list import LIST_BYTES_MAX, LIST_NAME, Shard, ShardList, parse_list
from p2psgd.data.store import Forbidden, Missing, Store, Unavailable
from p2psgd.errors import ExitCode, StoreError, UsageError, words_of

LOOK_EVERY_S: Final = 0.25
SAY_EVERY_S: Final = 5.0  # on stderr, where nothing else tells of a store that hangs
_Result = TypeVar("_Result")


class Fetch:
    """Of one shard, from now on. `cache` None: the store is as near as a cache would be."""

    def __init__(self, store: Store, cache: Cache | None, shard: Shard, patience: Patience) -> None:
        self.shard, self.place = shard, store.place
        self._store, self._cache = store, cache
        self._attempts = Attempts(self._bring, f"shard {shard.name}", store.place, patience)

    def wait(self, timeout_s: float) -> bool:
        """Wait so long for the end; False if it has not come."""
        return self._attempts.wait(timeout_s)

    def result(self) -> Arrays:
        """After the end: the arrays; StoreError if the store did not give them, UsageError if they will not
        do.
        """
        try:
            return self._attempts.result()
        except Missing as error:
            raise StoreError(self.place, f"does not give shard {self.shard.name}: {error}") from None

    def give_up(self) -> None:
        """Read no further."""
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
        """In the cache; without one, or where its disk has no room, training goes on all the same."""
        if self._cache is None:
            return
        try:
            self._cache.write(self.shard.sha256, content, moved)
        except OSError as error:
            words = f"shard {self.shard.name} is not kept in {self._cache.folder}: {words_of(error)}"
            print(f"p2psgd: {words}", file=sys.stderr, flush=True)


def fetch_list(store: Store, patience: Patience) -> ShardList:
    """The list of a store's shards; UsageError if there is none, StoreError if the store does not say."""
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


def insist(work: Callable[[Moved], _Result], what: str, store: Store, patience: Patience) -> _Result:
    """What the store gives, after some attempts if need be, for which this waits; see Attempts.result."""
    attempts = Attempts(work, what, store.place, patience)
    begun = said_at = time.monotonic()
    while not attempts.wait(LOOK_EVERY_S):
        now = time.monotonic()
        if now - said_at >= SAY_EVERY_S:
            said_at = now
            words = f"{store.place}: waiting for {what}, {now - begun:.0f} s so far{attempts.last_failure}"
            print(f"p2psgd: {words}", file=sys.stderr, flush=True)
    return attempts.result()


def read_checked(store: Store, shard: Shard, moved: Moved) -> bytes:
    """A shard's content, of the length and with the hash that the list tells, or Unavailable."""
    content = read_whole(store, shard.name, moved, bytes_max=shard.bytes)
    if len(content) != shard.bytes:
        raise Unavailable(f"it has {len(content)} bytes, and {LIST_NAME} tells {shard.bytes}")
    found = hash_of(content, moved)
    if found != shard.sha256:
        raise Unavailable(f"its SHA-256 begins with {found[:12]}, and {LIST_NAME} tells {shard.sha256[:12]}")
    return content


def read_whole(store: Store, name: str, moved: Moved, *, bytes_max: int) -> bytes:
    """A file's content, or Unavailable."""
    content = io.BytesIO()  # which gives its bytes away without a copy
    for piece in store.read(name):
        moved()
        if content.tell() + len(piece) > bytes_max:
            raise Unavailable(f"it has more than {bytes_max} bytes")
        content.write(piece)
    return content.getvalue()
