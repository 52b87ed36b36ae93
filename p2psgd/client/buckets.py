"""Buckets of a dense round as a trainer makes them, and what it has given to rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from p2psgd.ipc.layout import NAME_BYTES_MAX
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.wire.ring_messages import BUCKETS_MAX

# ----------------------------------------------------------------------------
# How the tensors that a trainer begins in a dense ring become buckets: the same at all nodes that begin them
# in the same order, whenever that is.
#
# A bucket is a range of weights. A tensor waits for its neighbours until 1 MiB is together, since a bucket
# costs its hops around the ring whatever its size; one of more than 4 MiB is cut, so that its parts overlap
# on their way. Knows nothing of memory or rounds.


JOINED_NUMBERS: Final = 1 << 18  # small tensors wait for so many: 1 MiB
BUCKET_NUMBERS: Final = 1 << 20  # the most in one bucket: 4 MiB
BEGUN_MAX: Final = BUCKETS_MAX // 4  # buckets before the rest; k of them leave k + 1 gaps at most
CUT_MAX: Final = BUCKETS_MAX // 4  # cuts: a larger run has larger buckets, and never too many of them

Range = tuple[int, int]  # of weights: begin, end


@dataclass(frozen=True, slots=True)
class Begun:
    """Progress of a contribution: `buckets` that are given, of these `tensors` and without `waiting`."""

    tensors: frozenset[str] = frozenset()
    waiting: Range | None = None
    buckets: int = 0
    given: frozenset[Range] = frozenset()


NOTHING_BEGUN: Final = Begun()


class BucketPlan:
    """The buckets of the weights of `tensors`."""

    def __init__(self, tensors: Tensors) -> None:
        self.ranges: dict[str, Range] = {}
        self._shapes = dict(tensors)
        self.weights = 0
        for name, shape in tensors:
            begin, self.weights = self.weights, self.weights + math.prod(shape)
            self.ranges[name] = (begin, self.weights)
        self._numbers_max = max(BUCKET_NUMBERS, -(-self.weights // CUT_MAX))

    def begin(self, begun: Begun, name: str) -> tuple[Begun, list[Range]]:
        """Begin this tensor, which is not begun yet; return the buckets that can be given now."""
        begin, end = self.ranges[name]
        ready: list[Range] = []
        waiting = begun.waiting
        if waiting is not None and waiting[1] == begin:
            waiting = (waiting[0], end)
        elif waiting is not None and waiting[0] == end:
            waiting = (begin, waiting[1])
        else:
            ready += [] if waiting is None else [waiting]
            waiting = (begin, end)
        if waiting[1] - waiting[0] >= JOINED_NUMBERS:
            ready.append(waiting)
            waiting = None
        after = replace(begun, tensors=begun.tensors | {name}, waiting=waiting)
        if begun.buckets >= BEGUN_MAX:
            return replace(after, waiting=None), []  # with the rest
        return self._give(after, ready)

    def rest(self, begun: Begun) -> list[Range]:
        """Return the buckets of all that is not given yet, in the order of the weights."""
        gaps: list[Range] = []
        position = 0
        for begin, end in sorted(begun.given):
            gaps.append((position, begin))
            position = end
        gaps.append((position, self.weights))
        return self._cut(gap for gap in gaps if gap[0] < gap[1])

    def describe(self, bucket: Range) -> tuple[str, str]:
        """Return a bucket's name for people, and its shape, each in NAME_BYTES_MAX bytes of UTF-8."""
        names = [name for name, (begin, end) in self.ranges.items() if begin < bucket[1] and bucket[0] < end]
        if len(names) == 1:
            return clip(names[0]), clip(str(self._shapes[names[0]]))
        return clip(f"{names[0]} to {names[-1]}"), f"{bucket[1] - bucket[0]} numbers"

    def _give(self, begun: Begun, ranges: list[Range]) -> tuple[Begun, list[Range]]:
        buckets = self._cut(ranges)
        return replace(
            begun, buckets=begun.buckets + len(buckets), given=begun.given | frozenset(buckets)
        ), buckets

    def _cut(self, ranges: Iterable[Range]) -> list[Range]:
        """Cut these ranges into equal parts of as many numbers as a bucket may have."""
        buckets: list[Range] = []
        for begin, end in ranges:
            parts = -(-(end - begin) // self._numbers_max)
            edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
            buckets += itertools.pairwise(edges)
        return buckets


def clip(words: str) -> str:
    """Return as much of a name as a bucket may carry."""
    return words.encode(errors="replace")[:NAME_BYTES_MAX].decode(errors="ignore")


# ----------------------------------------------------------------------------
# What a trainer has given to rounds since it attached: what its memory marks with each publication.


@dataclass(frozen=True, slots=True)
class Given:
    """`contributions` that are whole; the last one held `changes` of the weights, or an array; how far the
    next one is `begun`. `changes_counted`: how many of shard counts (shard_counts.py) went with updates.
    """

    contributions: int = 0
    changes: bool = False
    begun: Begun = NOTHING_BEGUN
    changes_counted: int = 0

    def contribute(self, *, changes: bool) -> Given:
        """Return the progress after one more whole contribution."""
        return Given(self.contributions + 1, changes, changes_counted=self.changes_counted)
