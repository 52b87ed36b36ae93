"""The buckets of a dense round: which numbers are summed together, in which order.

A bucket is a tensor or some of them; its sums go around the ring while the trainer still computes the next
one. A round of changes is whole when its buckets hold each weight once. An array of a script's own is a round
by itself. All nodes must give the same buckets in the same order: what one gives is compared with what its
left neighbour declares.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass

from p2psgd.core.dense_memory import ARRAY, CHANGES
from p2psgd.core.events import BucketShared
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.ring import BUCKETS_MAX


@dataclass(frozen=True, slots=True)
class Bucket:
    """`count` numbers of DenseMemory from `offset` on; `name` and `shape` are for people."""

    kind: int
    offset: int
    count: int
    name: str
    shape: str

    @property
    def end(self) -> int:
        """Behind its last number."""
        return self.offset + self.count

    def describe(self) -> str:
        """In a sentence: name and shape."""
        return f"{self.name!r} {self.shape}"


def bucket_of(said: BucketShared | RingBucket) -> Bucket:
    """What a trainer gave, or a peer declared."""
    return Bucket(said.kind, said.offset, said.count, said.name, said.shape)


class Buckets:
    """Those of one node's share of one round, as far as they are known."""

    def __init__(self, weights: int, numbers: int) -> None:
        """`weights`: P; `numbers`: M, what an array may have at most."""
        self.all: list[Bucket] = []
        self._weights = weights
        self._numbers = numbers
        self._covered = 0
        self._spans: list[tuple[int, int]] = []  # of weights, in order

    def __len__(self) -> int:
        return len(self.all)

    @property
    def whole(self) -> bool:
        """No bucket is to come."""
        return self._covered == self._weights or self.of_array

    @property
    def of_array(self) -> bool:
        """The round sums an array and changes no weight."""
        return bool(self.all) and self.all[0].kind == ARRAY

    def add(self, bucket: Bucket) -> None:
        """The next one; ValueError with a sentence if there can be none such."""
        what = f"bucket {len(self.all)}, {bucket.describe()},"
        if len(self.all) >= BUCKETS_MAX:
            raise ValueError(f"{what} is one too many: a round has at most {BUCKETS_MAX}")
        if bucket.count < 1:
            raise ValueError(f"{what} holds no numbers")
        if self.all and ARRAY in (bucket.kind, self.all[0].kind):
            raise ValueError(
                f"{what} does not go with {self.all[0].describe()}: an array is a round by itself"
            )
        if bucket.kind == CHANGES:
            self._cover(bucket, what)
        elif bucket.offset or bucket.count > self._numbers:
            raise ValueError(f"{what} is an array of {bucket.count} numbers: at most {self._numbers} fit")
        self.all.append(bucket)

    def _cover(self, bucket: Bucket, what: str) -> None:
        if bucket.end > self._weights:
            raise ValueError(f"{what} ends at weight {bucket.end} of {self._weights}")
        place = bisect(self._spans, (bucket.offset, bucket.end))
        overlaps = place > 0 and self._spans[place - 1][1] > bucket.offset
        if overlaps or (place < len(self._spans) and self._spans[place][0] < bucket.end):
            raise ValueError(f"{what} has weights that another bucket of the round has too")
        self._spans.insert(place, (bucket.offset, bucket.end))
        self._covered += bucket.count


def name_difference(place: int, number: int, own: Bucket, other: Bucket, name: str) -> str:
    """One sentence: bucket `place` of round `number` is one thing here and another at node `name`."""
    kinds = {CHANGES: "tensor", ARRAY: "array"}
    here, there = own.describe(), other.describe()
    if own.kind != other.kind:
        there = f"{kinds[other.kind]} {there}"
    elif here == there:
        here = f"{here}, {own.count} numbers from {own.offset} on,"
        there = f"{other.count} numbers from {other.offset} on"
    return (
        f"bucket {place} of round {number} is {kinds[own.kind]} {here} here and {there} at {name}: "
        "all nodes must give the same tensors in the same order"
    )
