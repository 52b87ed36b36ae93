"""Make the list of a data set's shards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.data.fetch import insist, read_whole
from p2psgd.data.shard_list import (
    FORMATS,
    LIST_BYTES_MAX,
    LIST_NAME,
    SHARDS_MAX,
    Array,
    Shard,
    ShardList,
    bad_shard,
    fault_of,
    load_shard,
)
from p2psgd.data.store import Missing, Moved, RetryPolicy, Store, open_store

BYTES_MAX: Final = 2**48
_Result = TypeVar("_Result")


def make_list(place: str, say: Callable[[str], None] = lambda words: None) -> ShardList:
    """Read every shard below a folder or URL, and put the list of them there.

    UsageError if there are none, or one is damaged; StoreError if the store does not give or take them.
    """
    store = open_store(place)
    names = _insist(store, "a list of its files", lambda moved: store.names())
    chosen = [name for name in names if name.endswith(FORMATS)]
    if not 1 <= len(chosen) <= SHARDS_MAX:
        raise UsageError(
            f"{place} has {len(chosen)} files that end in {', '.join(FORMATS)}; "
            f"1 to {SHARDS_MAX} can be listed",
            ExitCode.DATA,
        )
    shards = []
    for number, name in enumerate(chosen, 1):
        shards.append(_describe(store, name))
        say(f"{number} of {len(chosen)}: {name}")
    made = ShardList(shards=tuple(shards))
    packed = made.packed()
    if len(packed) > LIST_BYTES_MAX:
        raise UsageError(
            f"{LIST_NAME} of {place} would have {len(packed)} bytes, and at most {LIST_BYTES_MAX} are read: "
            "make fewer shards, or shorter names",
            ExitCode.DATA,
        )
    _insist(store, f"room for {LIST_NAME}", lambda moved: store.write(LIST_NAME, packed))
    return made


def _describe(store: Store, name: str) -> Shard:
    content = _insist(store, f"shard {name}", partial(read_whole, store, name, bytes_max=BYTES_MAX))
    arrays = load_shard(content, name)
    try:
        return Shard(
            name=name,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            samples=len(next(iter(arrays.values()))),
            arrays={key: _describe_array(array) for key, array in arrays.items()},
        )
    except ValidationError as error:
        raise bad_shard(ascii(name)[1:-1], f"it cannot be listed: {fault_of(error):.300}") from None


def _describe_array(array: NDArray[Any]) -> Array:
    whole = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    return Array(
        dtype=str(array.dtype),
        shape=array.shape,
        least=int(array.min()) if whole else None,
        largest=int(array.max()) if whole else None,
    )


def _insist(store: Store, what: str, work: Callable[[Moved], _Result]) -> _Result:
    """Return what the store gives, after several attempts if needed."""
    try:
        return insist(work, what, store, RetryPolicy())
    except Missing as error:
        raise UsageError(f"{store.place}: {what}: {error}", ExitCode.DATA) from None
