"""Scatter-reduce and allgather of one bucket, the buckets of a round, and the memory that they lie in."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire import codec
from p2psgd.wire.messages import RingBucket
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.ring_messages import ARRAY, BUCKETS_MAX, CHANGES, BucketContributed

# ----------------------------------------------------------------------------
# How a bucket is cut, and the order in which its numbers go through one link of the ring.
#
# [Baidu ring 2017]: a bucket of K numbers is cut into a chunk for each of N nodes, chunk c from K * c // N
# on; of few numbers some chunks are empty. Through each link go 2N - 2 chunks, one for each hop: first sums
# on the way to be whole (hops 0 to N - 2), then whole ones. The node at place p sends chunk p first, then p
# - 1, and so on round the circle, and so receives from p - 1 on downwards. What it receives at a hop it
# sends at the next, which makes one sequence of numbers of each link: a place in it says all about how far a
# bucket has come.


class Stream:
    """A place in that sequence: number `at` of the chunk of `hop`; `passed` numbers came before it."""

    def __init__(self, count: int, nodes: int, first: int) -> None:
        """Begin a stream of the bucket's `count` numbers; `first`: the chunk of hop 0."""
        self.hop = 0
        self.at = 0
        self.passed = 0
        self._count = count
        self._nodes = nodes
        self._first = first
        self._skip()

    @property
    def over(self) -> bool:
        """Return whether all has passed."""
        return self.hop == 2 * self._nodes - 2

    def rest(self) -> tuple[int, int]:
        """Return what is still to pass of this hop's chunk, as a range of the bucket; not after the end."""
        start, end = self._bounds()
        return start + self.at, end

    def advance(self, count: int) -> None:
        """Pass `count` numbers of `rest`."""
        self.at += count
        self.passed += count
        self._skip()

    def _bounds(self) -> tuple[int, int]:
        chunk = (self._first - self.hop) % self._nodes
        return self._count * chunk // self._nodes, self._count * (chunk + 1) // self._nodes

    def _skip(self) -> None:
        """Go on to the next hop that has numbers left."""
        while not self.over:
            start, end = self._bounds()
            if self.at < end - start:
                return
            self.hop, self.at = self.hop + 1, 0


# ----------------------------------------------------------------------------
# One bucket at one node of a dense ring: scatter-reduce and allgather [Baidu ring 2017].
#
# Sums are made in one order all around, so there is one right result to the bit: chunk c is share c, plus
# share c + 1, and so on round the circle, of those nodes that have a share. Where it is whole it is rounded
# to what travels, and from there it is copied.
#
# What a node sends at a hop is what it received at the hop before, with its share added; so what comes may
# wait in `sums` until the share is there, and is added then, piece by piece as it is sent. Memory is sent as
# it lies: a share until the sum that it went into has come back, a sum until it comes back whole, which
# takes that the right neighbour has read it.
#
# It knows no frames and no peers but by their faults. It keeps the CRC-32C of what it is to send, if that
# was found on the way, so that who sends it need not read all of it once more.


CHECKED_NUMBERS_MIN: Final = 1 << 12  # of fewer, remembering the CRC-32C costs more than finding it

OnFinal = Callable[[int, int, int], None]  # numbers from .. to of the bucket are sums of so many shares
OnUnsound = Callable[[int], None]  # this number of the bucket, of this node's share, is not finite
Verify = Callable[[int], object]  # PeerError unless this is the CRC-32C that the numbers must have


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The next numbers to send: float32, or float16 as they travel."""

    hop: int
    offset: int
    contributors: int
    numbers: NDArray[np.float32] | NDArray[np.float16]
    check: int | None  # their CRC-32C, if it is known


class Reduction:
    """The reduction of a bucket at one node. `own`: whether this node contributes to it; None until that is
    known.
    """

    def __init__(
        self,
        shares: NDArray[np.float32],
        sums: NDArray[np.float32],
        *,
        nodes: int,
        place: int,
        half: bool,
        on_final: OnFinal,
        on_unsound: OnUnsound,
    ) -> None:
        """Begin a reduction: `shares` and `sums` float32 (K,) of the bucket; `place` of `nodes` around the
        ring; `half`: float16 travels.
        """
        count = len(sums)
        self.own: bool | None = None
        self._shares = shares
        self._sums = sums
        self._nodes = nodes
        self._half = half
        self._on_final = on_final
        self._on_unsound = on_unsound
        self._sound = True
        self._in = Stream(count, nodes, place - 1)
        self._added = Stream(count, nodes, place - 1)  # of what came: this node's share is in
        self._out = Stream(count, nodes, place)
        self._first = count * (place + 1) // nodes - count * place // nodes  # numbers that begin here
        self._to_add = count - self._first  # numbers that come to be added to
        self._contributors: dict[int, int] = {}  # by hop at which they came, of sums under way
        self._total = 0  # of those that came whole
        self._checks: dict[tuple[int, int, int], int] = {}  # CRC-32C of what is to be sent: hop, from, to

    @property
    def whole(self) -> bool:
        """Return whether all sums are here."""
        return self._in.over and self._added.passed == self._to_add

    @property
    def sent(self) -> bool:
        """Return whether the right neighbour was sent all."""
        return self._out.over

    @property
    def heard(self) -> int:
        """Return how many nodes to the left are known to have contributed to this bucket, or to have nothing
        for it.
        """
        return min(max(self._contributors, default=-1) + 1, self._nodes - 1)

    # -- receiving

    def check(self, hop: int, offset: int, count: int, contributors: int, others: int | None) -> None:
        """Raise PeerError unless these numbers are the next. `others`: how many shares but this node's are in
        the sums of the round, if that is known.
        """
        numbers = f"numbers {offset} to {offset + count} at hop {hop}"
        if self._in.over:
            raise PeerError(RejectCode.RING, f"{numbers} came of a bucket that is whole")
        start, end = self._in.rest()
        if hop != self._in.hop or offset != start or count > end - start:
            place = f"{start} to {end} belong at hop {self._in.hop}"
            raise PeerError(RejectCode.RING, f"{numbers} came where {place}")
        if hop < self._nodes - 1:
            known = self._contributors.get(hop, contributors)
            if hop == self._nodes - 2 and others is not None:
                known = others
            nobody = hop == self._nodes - 2 and not contributors and self.own is False
            wrong = nobody or contributors > hop + 1 or contributors != known
        else:
            if self._in.passed - self._to_add + count > self._out.passed:
                raise PeerError(
                    RejectCode.RING, f"{numbers} came whole before this node's part in them was sent"
                )
            expected = contributors if others is None else others + bool(self.own)
            wrong = not max(1, bool(self.own)) <= contributors <= self._nodes or contributors != expected
        if wrong:
            raise PeerError(RejectCode.RING, f"{numbers} cannot be sums of {contributors} shares")

    def take(self, numbers: memoryview, contributors: int, verify: Verify) -> None:
        """Take numbers that `check` has let pass, little-endian. They go into `sums` as they are read to be
        verified; if they are refused nothing has come, and what lies there is nobody's.
        """
        hop, (start, _) = self._in.hop, self._in.rest()
        end = start + len(numbers) // (2 if self._half else 4)
        whole = hop >= self._nodes - 1
        at_once = not whole and self.own is not None and self._added.passed == self._in.passed
        if at_once and self.own and contributors and not self._half:
            came, check, sound = codec.add_numbers(numbers, self._shares[start:end], self._sums[start:end])
            verify(came)
            self._found(start, end, sound=sound)
            self._contributors[hop] = contributors
            self._has_added(start, end, check)
        else:
            came = self._store(numbers, start, end)
            verify(came)
            if whole:
                self._total = contributors
                if not self._half:
                    self._remember((hop + 1, start, end), came)
                self._on_final(start, end, contributors)
            else:
                self._contributors[hop] = contributors
        self._in.advance(end - start)
        if not whole and self.own is not None:  # what lay here already is caught up with step by step
            self._add_until(self._added.passed + 2 * (end - start))

    def _remember(self, piece: tuple[int, int, int], check: int) -> None:
        """Keep the CRC-32C of numbers to send: hop, from, to. Small pieces are left out, or a neighbour that
        cuts finely could fill the memory with them.
        """
        if piece[2] - piece[1] >= CHECKED_NUMBERS_MIN:
            self._checks[piece] = check

    def _store(self, numbers: memoryview, start: int, end: int) -> int:
        if not self._half:
            return codec.copy_numbers(numbers, self._sums[start:end])
        self._sums[start:end] = np.frombuffer(numbers, "<f2")
        return codec.crc32c(numbers)

    @property
    def others(self) -> int | None:
        """Return how many contributions but this node's are in the sums, once that is known."""
        if self._total:
            return self._total - bool(self.own)
        return self._contributors.get(self._nodes - 2)

    # -- sending

    def next_piece(self, numbers_max: int) -> Piece | None:
        """Return what may be sent now, at most `numbers_max` numbers of it; None if there is nothing."""
        known = self._first + self._in.passed - self._out.passed
        if self.own is None or self._out.over or known <= 0:
            return None
        hop, (start, end) = self._out.hop, self._out.rest()
        end = min(end, start + min(numbers_max, known))
        check = None
        if hop == 0:
            contributors = int(self.own)
            source = self._shares[start:end] if self.own else np.zeros(end - start, np.float32)
            if self.own:
                check = self._check_own(start, end)
        else:
            if hop < self._nodes:
                self._add_until(self._out.passed + end - start - self._first)
            contributors = self._contributors[hop - 1] + self.own if hop < self._nodes else self._total
            source = self._sums[start:end]
            check = self._checks.pop((hop, start, end), None)
        if not self._sound:
            return None
        self._out.advance(end - start)
        return Piece(hop, start, contributors, travelling(source, half=self._half), check)

    def _add_until(self, passed: int) -> None:
        """Add this node's share to the first `passed` numbers that came, or to as many as have come."""
        while self._added.passed < (wanted := min(passed, self._in.passed, self._to_add)):
            start, end = self._added.rest()
            self._add(start, min(end, start + wanted - self._added.passed))

    def _add(self, start: int, end: int) -> None:
        """Add this node's share to these sums, which lie there, the next after `_added`."""
        hop, sums, check = self._added.hop, self._sums[start:end], None
        if self.own and not self._contributors[hop]:
            check = self._check_own(start, end)
            sums[:] = self._shares[start:end]
        elif self.own:
            _, check, sound = codec.add_numbers(sums.data.cast("B"), self._shares[start:end], sums)
            self._found(start, end, sound=sound)
        self._has_added(start, end, check)

    def _check_own(self, start: int, end: int) -> int | None:
        """Return the CRC-32C of this node's contribution to these numbers, as they travel; None if they
        travel as float16.
        """
        check, sound = codec.check_numbers(self._shares[start:end])
        self._found(start, end, sound=sound)
        return None if self._half else check

    def _found(self, start: int, end: int, *, sound: bool) -> None:
        """Note whether all of this node's share of these numbers are finite; if not, nothing more is sent."""
        if not sound:
            self._sound = False
            self._on_unsound(start + int(np.argmin(np.isfinite(self._shares[start:end]))))

    def _has_added(self, start: int, end: int, check: int | None) -> None:
        """Note that this node's share is in these sums, or it has none; `check`: their CRC-32C if it is
        known.
        """
        hop = self._added.hop
        if check is not None and not self._half:
            self._remember((hop + 1, start, end), check)
        if hop == self._nodes - 2:
            if self._half:
                sums = self._sums[start:end]
                sums[:] = travelling(sums, half=True)
            self._on_final(start, end, max(1, self._contributors[hop] + bool(self.own)))
        self._added.advance(end - start)


def travelling(numbers: NDArray[np.float32], *, half: bool) -> NDArray[np.float32] | NDArray[np.float16]:
    """Return numbers as they go through a link: the same memory, or rounded to float16."""
    if not half:
        return numbers
    with np.errstate(all="ignore"):
        return numbers.astype(np.float16)


# ----------------------------------------------------------------------------
# The memory of a dense ring that daemon and trainer share, as the core sees it.


NUMBERS_MIN: Final = 1 << 18  # also in a run of few weights: scripts sum arrays of their own through it


@dataclass(frozen=True, slots=True, eq=False)
class DenseMemory:
    """The memory of a dense ring. `shares` float32 (M,): what this node's trainer gives to the round, its own
    until it opens the next one; `arrays` float32 (M,): the same of an array, which may come while changes are
    being made. `sums` float32 (2, M): what the ring makes of all shares; rounds take the two halves in turn,
    so that a trainer can read the last sums while the next come in. M = max(P, NUMBERS_MIN).
    """

    shares: NDArray[np.float32]
    arrays: NDArray[np.float32]
    sums: NDArray[np.float32]

    def given(self, kind: int) -> NDArray[np.float32]:
        """Return where buckets of this kind lie."""
        return self.arrays if kind == ARRAY else self.shares


def make_dense_memory(weights: int) -> DenseMemory:
    """Return the memory of a node that has had no trainer yet."""
    numbers = max(weights, NUMBERS_MIN)
    shares, arrays = np.zeros((2, numbers), np.float32)
    return DenseMemory(shares, arrays, np.zeros((2, numbers), np.float32))


# ----------------------------------------------------------------------------
# The buckets of a dense round: which numbers are summed together, in which order.
#
# A bucket is a tensor or some of them; its sums go around the ring while the trainer still computes the next
# one. A round of changes is whole when its buckets hold each weight once. An array of a script's own is a
# round by itself. All nodes must give the same buckets in the same order: what one gives is compared with
# what its left neighbour declares.


@dataclass(frozen=True, slots=True)
class Bucket:
    """`count` numbers of DenseMemory from `offset` on. All fields are compared, also what people read."""

    kind: int
    offset: int
    count: int
    name: str
    shape: str

    @property
    def end(self) -> int:
        """The place behind its last number."""
        return self.offset + self.count

    def describe(self) -> str:
        """Return name and shape for a sentence."""
        return f"{self.name!r} {self.shape}"


def bucket_of(said: BucketContributed | RingBucket) -> Bucket:
    """Return the bucket that a trainer gave, or a peer declared."""
    return Bucket(said.kind, said.offset, said.count, said.name, said.shape)


class Buckets:
    """The buckets of one node's share of one round, as far as they are known."""

    def __init__(self, weights: int, numbers: int) -> None:
        """Begin without buckets. `weights`: P; `numbers`: M, what an array may have at most."""
        self.all: list[Bucket] = []
        self._weights = weights
        self._numbers = numbers
        self._covered = 0
        self._spans: list[tuple[int, int]] = []  # of weights, in order

    def __len__(self) -> int:
        return len(self.all)

    @property
    def whole(self) -> bool:
        """Return whether no bucket is missing."""
        return self._covered == self._weights or self.of_array

    @property
    def of_array(self) -> bool:
        """Return whether the round sums an array and changes no weight."""
        return bool(self.all) and self.all[0].kind == ARRAY

    def add(self, bucket: Bucket) -> None:
        """Add the next bucket; ValueError with a sentence if there can be none such."""
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
    """Return one sentence: bucket `place` of round `number` is one thing here and another at node `name`."""
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
