"""What a trainer may write into its outbox, by the run's mode, and the checks that it must pass.

In async mode an entry is an update. In a sparse ring a closing entry ends the node's share of a round, and
only whole shares come out of here. In a dense ring an entry says that a bucket of the shares is whole. A
trainer may only give to a round that was opened for it. Whatever else lies there is a TrainerError.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.errors import PeerError, TrainerError
from p2psgd.ipc import layout
from p2psgd.ipc.host import Bucket, Given, OwnUpdate, Share
from p2psgd.ipc.requests import TENSORS_MAX
from p2psgd.wire import codec
from p2psgd.wire.mode import Mode
from p2psgd.wire.ring import BUCKETS_MAX

MINI_BATCH_LEAP_MAX: Final = 2**32  # between two entries; keeps a liar from using up 64 bits
CHANGES: Final = 0  # kinds of bucket, as they travel: changes of the weights,
ARRAY: Final = 1  # a script's own array


class Entries(Protocol):
    """Checks one entry after the other. `mini_batches` is of the last thing taken."""

    mini_batches: int
    opened: int  # rounds, for this trainer

    @property
    def half(self) -> bool:
        """What was checked last must go on before anything can be made of it."""

    def check(self, entry: bytes) -> Given | None:
        """What an entry means; None if only with those that follow. TrainerError, with nothing changed."""


def make_entries(weights: int, mode: Mode, mini_batches: int) -> Entries:
    """For a trainer that goes on after `mini_batches`."""
    if mode.dense:
        return Buckets(weights, mini_batches)
    return Shares(weights, mini_batches) if mode.ring else Updates(weights, mini_batches)


def check_mini_batch(mini_batch: int, first: int, before: int) -> None:
    """TrainerError unless it is `first` or follows, and not by much more than `before`."""
    if not first <= mini_batch <= before + MINI_BATCH_LEAP_MAX:
        raise TrainerError(f"mini-batch {mini_batch} cannot follow mini-batch {before}")


class Updates:
    """Of the asynchronous mode; one mini-batch may send several."""

    half = False

    def __init__(self, weights: int, mini_batches: int) -> None:
        self.mini_batches = mini_batches
        self.opened = 0
        self._first = mini_batches + 1  # that the next entry may be of
        self._weights = weights

    def check(self, entry: bytes) -> OwnUpdate:
        mini_batch = layout.OUTBOX_ENTRY.unpack_from(entry)[0]
        check_mini_batch(mini_batch, self._first, self.mini_batches)
        update = check_update(entry, self._weights)
        self.mini_batches = self._first = mini_batch
        return update


def check_update(entry: bytes, weights: int) -> OwnUpdate:
    """One entry of indices; its mini-batch is not looked at."""
    mini_batch, step, count = layout.OUTBOX_ENTRY.unpack_from(entry)
    payload = entry[layout.OUTBOX_ENTRY.size :]
    if not 1 <= step <= codec.STEP_MAX:
        raise TrainerError(f"step {step} is not within 1 to {codec.STEP_MAX} quanta")
    if not 1 <= count <= codec.indices_max(weights):
        raise TrainerError(f"{count} indices, possible are 1 to {codec.indices_max(weights)}")
    try:
        words: NDArray[np.uint32] = codec.decode(payload, count, weights)
    except PeerError as error:
        raise TrainerError(f"its payload does not decode: {error}") from None
    return OwnUpdate(mini_batch, step, count, payload, words)


class Shares:
    """Of a sparse ring."""

    def __init__(self, weights: int, mini_batches: int) -> None:
        self.mini_batches = mini_batches
        self.opened = 0
        self._given = 0
        self._updates: list[OwnUpdate] = []
        self._indices = 0
        self._weights = weights
        self._indices_max = codec.indices_max(weights) + TENSORS_MAX  # of one send (trainer/sweep.py)

    @property
    def half(self) -> bool:
        return bool(self._updates)

    def check(self, entry: bytes) -> Share | None:
        if self._given >= self.opened:
            raise TrainerError(f"a share of a round that is not open: {self.opened} were opened")
        mini_batch, step, count = layout.OUTBOX_ENTRY.unpack_from(entry)
        if self._updates:
            first = before = self._updates[0].mini_batch
            if mini_batch != first:
                raise TrainerError(f"mini-batches {before} and {mini_batch} in one share")
        else:
            check_mini_batch(mini_batch, self.mini_batches + bool(count), self.mini_batches)
        if step == count == 0 and len(entry) == layout.OUTBOX_ENTRY.size:
            share = Share(mini_batch, tuple(self._updates))
            self._updates, self._indices = [], 0
            self._given += 1
            self.mini_batches = mini_batch
            return share
        update = check_update(entry, self._weights)
        if len(self._updates) == TENSORS_MAX or self._indices + count > self._indices_max:
            raise TrainerError(f"a share of more than {TENSORS_MAX} updates or {self._indices_max} indices")
        self._updates.append(update)
        self._indices += count
        return None


class Buckets:
    """Of a dense ring. Those of one round of changes hold each weight once; an array is a round alone."""

    half = False

    def __init__(self, weights: int, mini_batches: int) -> None:
        self.mini_batches = mini_batches
        self.opened = 0
        self._given = 0
        self._weights = weights
        self._numbers = layout.dense_numbers(weights)
        self._covered: list[tuple[int, int]] = []  # by this round's buckets so far

    def check(self, entry: bytes) -> Bucket:
        if self._given >= self.opened:
            raise TrainerError(f"a share of a round that is not open: {self.opened} were opened")
        mini_batch, kind, offset, count, name_bytes = layout.BUCKET_ENTRY.unpack_from(entry)
        check_mini_batch(mini_batch, self.mini_batches + (kind == CHANGES), self.mini_batches)
        words = entry[layout.BUCKET_ENTRY.size :]
        name, shape = words[:name_bytes], words[name_bytes:]
        if name_bytes > len(words) or max(len(name), len(shape)) > layout.NAME_BYTES_MAX:
            raise TrainerError(f"a name of {name_bytes} and a shape in {len(words)} bytes")
        try:
            bucket = Bucket(mini_batch, kind, offset, count, name.decode(), shape.decode())
        except UnicodeDecodeError:
            raise TrainerError("a name or a shape that is not UTF-8") from None
        if kind == CHANGES:
            self._cover(bucket)
        elif kind != ARRAY or offset or not 1 <= count <= self._numbers or self._covered:
            raise TrainerError(f"a bucket of kind {kind}, of {count} numbers from {offset}, cannot be here")
        else:
            self._given += 1
        return bucket

    def _cover(self, bucket: Bucket) -> None:
        begin, end = bucket.offset, bucket.offset + bucket.count
        if begin == end or end > self._weights:
            raise TrainerError(f"a bucket of weights {begin} to {end} of {self._weights}")
        if any(begin < other_end and other < end for other, other_end in self._covered):
            raise TrainerError(f"weights {begin} to {end} are in a bucket of this round already")
        if len(self._covered) == BUCKETS_MAX:
            raise TrainerError(f"more than {BUCKETS_MAX} buckets in a round")
        self._covered.append((begin, end))
        if sum(end - begin for begin, end in self._covered) == self._weights:
            self._covered = []
            self._given += 1
            self.mini_batches = bucket.mini_batch
