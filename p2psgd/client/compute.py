"""Weights and residual behind a link: what a link asks for, its residual pass, and the host's memory as the
usual place of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.point import Point
from p2psgd.ipc import layout
from p2psgd.ipc.protocol import AttachAnswer
from p2psgd.ipc.run_proposal import Tensors
from p2psgd.ipc.segments import Access, map_segment
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.wire import codec
from p2psgd.wire.mode import parse_mode
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import PARTS_MAX
from p2psgd.wire.update import UpdateHeader, parse_update

# ----------------------------------------------------------------------------
# The residual pass of a whole `send`: tensors that share a threshold are swept together, each such group
# once. What passes over weights is a `Compute`; `ResidualPass` says in which order, and what follows.
#
# An update bears one magnitude, so every group becomes an update of its own, or several where one does not
# hold its words. One send takes about as many words as `layout.send_indices_max` says, shared among the
# groups by their weights: that bounds what peers must do for a step, however many thresholds it has. What
# exceeds a group's share waits; the next send begins at the first weight that missed its turn, goes around,
# and so starves nobody, whatever the groups are by then.


Range = tuple[int, int]  # of weights: begin, end
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Group:
    """The weights that share one threshold; `ranges` ascend and do not touch each other."""

    magnitude: int  # quanta
    ranges: tuple[Range, ...]
    room: int  # most words of one send


@dataclass(frozen=True, slots=True)
class Segment:
    """Residual passes over one range after the other, whose words follow each other: `room` in all.

    A weight is sent when its residual exceeds `threshold` in magnitude.
    """

    ranges: tuple[Range, ...]
    threshold: float
    room: int


@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of the passes of a chain: `words`, of each range `counts`; the first weight, as they went, that
    found no room, else None.
    """

    words: Words
    counts: Sequence[int]
    missed: int | None


def words_max(indices_max: int, tensors: Tensors) -> int:
    """Return the most words that all chains of one run have room for, if one send has at most
    `indices_max`, and one more for each group.
    """
    return indices_max + len(tensors)


PassOver = Callable[[Sequence[Segment]], list[PassResult]]


class ResidualPass:
    """Residual passes over the weights of `tensors`.

    `indices_max` is the most that one send may hold.
    """

    def __init__(self, tensors: Tensors, *, indices_max: int, quantum: float) -> None:
        self._ranges: dict[str, Range] = {}
        self._weights = 0
        for name, shape in tensors:
            begin, self._weights = self._weights, self._weights + math.prod(shape)
            self._ranges[name] = (begin, self._weights)
        self._whole = ((0, self._weights),)
        self._indices_max = indices_max
        self._quantum = quantum
        self._first_words = np.array([begin << 1 for begin, _ in self._ranges.values()], np.uint32)
        self._start = 0  # the weight where the next run begins in every group

    def groups(self, threshold: int | Mapping[str, int]) -> list[Group]:
        """Return all weights grouped by threshold, in quanta.

        Raises TrainerError for a threshold out of range, a tensor without one, or groups that could make more
        updates than a send may have.
        """
        if not isinstance(threshold, Mapping):
            room = min(self._weights, max(1, self._indices_max))
            return [Group(_checked(threshold, "threshold"), self._whole, room)]
        if threshold.keys() != self._ranges.keys():
            unknown = [name for name in threshold if name not in self._ranges]
            missing = [name for name in self._ranges if name not in threshold]
            what = f"there is no tensor {unknown[0]!r}" if unknown else f"{missing[0]!r} has none"
            known = ", ".join(map(repr, self._ranges))
            raise TrainerError(f"threshold must name every tensor, {known}, and no other: {what}")
        ranges: dict[int, list[Range]] = {}
        for name, (begin, end) in self._ranges.items():
            same = ranges.setdefault(_checked(threshold[name], f"threshold of {name!r}"), [])
            joins = bool(same) and same[-1][1] == begin
            same.append((same.pop()[0] if joins else begin, end))
        groups = [self._group(number, same) for number, same in ranges.items()]
        updates = sum(-(-group.room // codec.indices_max(self._weights)) for group in groups)
        if updates > PARTS_MAX:
            raise TrainerError(
                f"the {len(groups)} distinct thresholds of this send make up to {updates} updates; a send has"
                f" at most {PARTS_MAX}: give more tensors the same threshold"
            )
        return groups

    def run(self, pass_over: PassOver, groups: Sequence[Group]) -> list[tuple[Group, Words]]:
        """Have the chains of these groups passed over; the words of each group that has some, ascending.

        ValueErrors of `pass_over` pass through: nothing has changed then.
        """
        swept: list[tuple[Group, Words]] = []
        waits = self._weights  # how far after the start the first weight lies that missed its turn
        uppers: list[int] = []  # how many ranges of each group come before the turn
        chains: list[Segment] = []
        for group in groups:
            upper, lower = self._parts(group) if self._start else (group.ranges, ())
            uppers.append(len(upper))
            chains.append(Segment((*upper, *lower), group.magnitude * self._quantum, group.room))
        for group, upper_ranges, found in zip(groups, uppers, pass_over(chains), strict=True):
            if found.missed is not None:
                waits = min(waits, (found.missed - self._start) % self._weights)
            count, turn = len(found.words), sum(found.counts[:upper_ranges])
            if count:
                # after a turn in the middle, the lower indices came last
                swept.append((group, found.words if turn == count else np.roll(found.words, -turn)))
        self._start = 0 if waits == self._weights else (self._start + waits) % self._weights
        return swept

    def count(self, swept: Sequence[tuple[Group, Words]]) -> dict[str, int]:
        """Return how many words each tensor has."""
        counts = np.zeros(len(self._ranges), np.int64)
        for _, words in swept:
            counts += np.diff(np.searchsorted(words, self._first_words), append=len(words))
        return dict(zip(self._ranges, counts.tolist(), strict=True))

    def _group(self, magnitude: int, ranges: list[Range]) -> Group:
        size = sum(end - begin for begin, end in ranges)
        return Group(magnitude, tuple(ranges), min(size, max(1, self._indices_max * size // self._weights)))

    def _parts(self, group: Group) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
        """Return the group's ranges from the start on, and those before it, whose turn comes after them."""
        start = self._start
        upper = tuple((max(begin, start), end) for begin, end in group.ranges if end > start)
        return upper, tuple((begin, min(end, start)) for begin, end in group.ranges if begin < start)


def _checked(magnitude: object, what: str) -> int:
    most = codec.MAGNITUDE_MAX
    if (
        isinstance(magnitude, bool)
        or not isinstance(magnitude, int | np.integer)
        or not 1 <= magnitude <= most
    ):
        raise TrainerError(
            f"{what} must be an int, a number of quanta (of 2**-20 each, by default) from 1 to {most}; it is"
            f" {magnitude!r}"
        )
    return int(magnitude)


# ----------------------------------------------------------------------------
# Where a link keeps the weights and the residual, and what works on them there: in the host's memory
# (HostCompute), or in a GPU's (p2psgd.gpu).
#
# Links decide what happens when; what is behind this does it, and gives the same bits wherever that is.
# Arrays of P numbers are of its own kind, numpy's or CuPy's; words are always numpy's.


NotePeer = Callable[[int, int], None]  # node, mini-batch


Named = Mapping[str, Any]  # arrays of the compute's kind, by name


class Compute(Protocol):
    """Working copy of the replica of one link, weights and shard counts, in float32. Not safe for several
    threads.
    """

    @property
    def weights(self) -> Any:
        """Return the working copy, (P,) float32; for reading."""

    @property
    def tensors(self) -> Named:
        """Return views of the weights by name, in their shapes."""

    def fetch_shard_counts(self) -> NDArray[np.float32]:
        """Return the shard counts, (2 x shards,) in quanta times the quantum, as numpy's; for reading, at
        once.
        """

    @property
    def residual(self) -> Any:
        """Return the residual, (P,) float32, as of the last publication; for reading."""

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica, a sealed memfd of int32 (C,), which in a
        dense ring are the bit patterns of float32.
        """

    def digest(self, key: int) -> int:
        """Return the digest of the coordinates, as the daemon has it of its replica (wire/native/digest.hpp).

        A weight that is not a multiple of the quantum counts as coordinate -2**31, which no replica has.
        """

    def check(self, delta: Any) -> Any:
        """Return the delta as `pass_over` takes it; TrainerError if it is not a delta of P numbers."""

    def pass_over(
        self, delta: Any, chains: Sequence[Segment], meanwhile: Callable[[], None]
    ) -> list[PassResult]:
        """Accumulate, threshold, subtract: compute the residual, and return what to send of it.

        The residual becomes current with the next publication; nothing else changes. Words are valid until
        the next call. ValueError if a sum is NaN or infinite. Where the host would only wait for it,
        `meanwhile` is called while it is under way.
        """

    def apply_sent(self, sent: Sequence[tuple[Group, Words]]) -> None:
        """Apply what came of the last `pass_over`."""

    def apply_received(self, bodies: Iterable[bytes], note_peer: NotePeer) -> int:
        """Apply UPDATE bodies; return how many they were. `note_peer(node, steps)` is called for each.

        TrainerError if one does not check.
        """

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round: weights += sums * factor, each product and each sum rounded to float32."""

    def place_contributions(self, contributions: Mapping[str, NDArray[np.float32]]) -> Named:
        """Return, in a dense ring, arrays to write a contribution to, by tensor; the daemon reads it from
        `contributions`.
        """

    def fetch_contribution(self, name: str) -> None:
        """Fetch this tensor of the contribution, which is written, to where the daemon reads it."""

    def fetch_delta(self, delta: Any) -> NDArray[Any]:
        """Return a checked delta in the host's memory."""

    def rest(self) -> None:
        """Do what is due now and then, between two steps, if it is due."""

    def keep_residual(self) -> None:
        """Copy the residual to where the daemon looks for it when a state is sent to it."""

    def close(self) -> None:
        """Leave the residual where the next trainer finds it; nothing is called after this."""


MakeCompute = Callable[[AttachAnswer, TrainerMemory[Any]], Compute]


def cut(weights: Any, tensors: Tensors) -> dict[str, Any]:
    """Return views of a flat array (P,) by the tensors' names, in their shapes."""
    views, start = {}, 0
    for name, shape in tensors:
        size = math.prod(shape)
        views[name] = weights[start : start + size].reshape(shape)
        start += size
    return views


# ----------------------------------------------------------------------------
# Updates as they come out of the inbox, decoded and put together to be applied many at a time.


BATCH_UPDATES_MAX = 64  # received updates applied at a time: more gain little
BATCH_WORDS_MAX = 2**20  # of all of them: 4 MB, so that they stay in the last cache until they are applied

Batch = list[tuple[UpdateHeader, NDArray[np.uint32]]]  # the words lie one after the other


def batch_words_max(indices_max: int) -> int:
    """Return how many words the memory of a batch has room for, if one update has at most `indices_max`."""
    return max(indices_max, min(BATCH_WORDS_MAX, BATCH_UPDATES_MAX * indices_max))


def decode_batches(
    bodies: Iterable[bytes], coordinates: int, memory: Callable[[], NDArray[np.uint32]]
) -> Iterator[Batch]:
    """Decode UPDATE bodies for a replica of this many coordinates, batch after batch, none of them empty.

    `memory()` says where the words of the next batch go, (batch_words_max(),). TrainerError if a body does
    not check; the batches before it are whole.
    """
    batch: Batch = []
    room = memory()
    for body in bodies:
        try:
            header, payload = parse_update(body, coordinates)
            if header.count > room.size or len(batch) == BATCH_UPDATES_MAX:
                yield batch
                batch, room = [], memory()
            words, room = room[: header.count], room[header.count :]
            if header.count:
                codec.decode_into(payload, words, coordinates - header.base)
                words += np.uint32(header.base << 1)
            batch.append((header, words))
        except PeerError as error:
            raise TrainerError(f"the daemon's inbox holds an update that does not check: {error}") from None
    if batch:
        yield batch


# ----------------------------------------------------------------------------
# Weights and residual in the host's memory, worked on by the native core: what a link has by default.
#
# The working copy of the weights is private to this process; the residual lies in memory shared with the
# daemon, and so outlives it. Received updates are applied many at a time, which passes over the weights once
# for all of them.


ADDED_NUMBERS = 1 << 18  # of a dense round at a time: 1 MiB, so that the product stays in the cache
DIGEST_WEIGHTS = 1 << 16  # of a digest at a time, for which there are five arrays of as many
NO_COORDINATE = -(2**31)


class HostCompute:
    """A link's weights and residual; both are read-only to others."""

    def __init__(self, answer: AttachAnswer, memory: TrainerMemory[Any]) -> None:
        self._memory = memory
        self._quantum = 2.0**answer.quantum_log2
        self._dense = parse_mode(answer.mode).dense
        self._replica = np.empty(answer.coordinates, np.float32)  # weights, then shard counts
        self.weights = _read_only(self._replica[: answer.weights])
        self.tensors = cut(self.weights, answer.tensors)
        self._batch_words = np.empty(batch_words_max(codec.indices_max(answer.coordinates)), np.uint32)
        room = words_max(layout.send_indices_max(answer.coordinates), answer.tensors)
        self._words = np.empty(room, np.uint32)
        self.point: Point | None = None  # of a trainer that keeps one: it moves with received updates

    @property
    def residual(self) -> NDArray[np.float32]:
        """Return the residual (P,), as of the last publication."""
        return _read_only(self._memory.residual)

    def fetch_shard_counts(self) -> NDArray[np.float32]:
        """Return the shard counts, which lie behind the weights."""
        return _read_only(self._replica[self.weights.size :])

    def copy_from(self, replica: int) -> None:
        """Take the weights from the daemon's copy of its replica."""
        coordinates = map_segment(replica, np.int32, self._replica.size, Access.SEALED)
        if self._dense:
            self._replica[:] = coordinates.view(np.float32)
        else:
            np.multiply(coordinates, self._quantum, out=self._replica, casting="same_kind")

    def digest(self, key: int) -> int:
        """Return the digest of the weights' coordinates; about 5 ns each."""
        total = 0
        for begin in range(0, self._replica.size, DIGEST_WEIGHTS):
            piece = self._replica[begin : begin + DIGEST_WEIGHTS]
            coordinates = piece.view(np.int32) if self._dense else coordinates_of(piece, self._quantum)
            total += codec.digest_coordinates(coordinates, key, begin)
        return total % 2**64

    def check(self, delta: Any) -> NDArray[Any]:
        """Return the delta, contiguous."""
        if (
            not isinstance(delta, np.ndarray)
            or delta.dtype.name not in codec.DELTA_TYPES
            or not delta.dtype.isnative
            or delta.shape != self.weights.shape
        ):
            found = f"{delta.dtype} {delta.shape}" if isinstance(delta, np.ndarray) else type(delta).__name__
            raise TrainerError(
                f"delta must be a numpy array {self.weights.shape} of {', '.join(codec.DELTA_TYPES)};"
                f" it is {found}"
            )
        return np.ascontiguousarray(delta)

    def pass_over(
        self, delta: NDArray[Any] | None, chains: Sequence[Segment], meanwhile: Callable[[], None]
    ) -> list[PassResult]:
        """Compute the residual of the next publication, and return what to send; the host does not wait for
        it. Without a delta the residual is what the point is away from the weights.
        """
        memory, words = self._memory, self._words
        if delta is not None:
            return pass_over(memory.residual, delta, memory.next_residual, chains, words=words)
        assert self.point is not None
        return pass_over(self.point, self.weights, memory.next_residual, chains, words=words, negated=True)

    def apply_sent(self, sent: Sequence[tuple[Group, Words]]) -> None:
        """Apply what came of the last `pass_over` to the working copy."""
        for group, words in sent:
            codec.apply_weights(self._replica, words, group.magnitude * self._quantum)

    def apply_received(self, bodies: Iterable[bytes], note_peer: NotePeer) -> int:
        """Apply UPDATE bodies."""
        applied = 0
        for batch in decode_batches(bodies, self._replica.size, repeat(self._batch_words).__next__):
            amounts: list[tuple[Words, float]] = []
            for header, words in batch:
                amounts.append((words, header.magnitude * self._quantum))
            codec.apply_weights_together(self._replica, amounts)
            if self.point is not None:
                self.point.apply(amounts)
            for header, _ in batch:
                note_peer(header.node, header.steps)
            applied += len(batch)
        return applied

    def add(self, sums: NDArray[np.float32], factor: np.float32) -> None:
        """Apply a dense round."""
        with np.errstate(all="ignore"):  # overflow is told by the next loss
            for begin in range(0, self._replica.size, ADDED_NUMBERS):
                piece = self._replica[begin : begin + ADDED_NUMBERS]
                piece += sums[begin : begin + piece.size] * factor

    def place_contributions(
        self, contributions: Mapping[str, NDArray[np.float32]]
    ) -> Mapping[str, NDArray[np.float32]]:
        """Return `contributions`: a contribution is written where the daemon reads it."""
        return contributions

    def fetch_contribution(self, name: str) -> None:
        """Do nothing: a contribution in host memory needs no copy."""

    def fetch_delta(self, delta: NDArray[Any]) -> NDArray[Any]:
        """Return the delta, which is in host memory already."""
        return delta

    def rest(self) -> None:
        """Do nothing: nothing is due."""

    def keep_residual(self) -> None:
        """Copy the residual to where the daemon looks for it."""
        self._memory.keep_residual(self._memory.residual)

    def close(self) -> None:
        """Do nothing: the residual is where the next trainer finds it."""


def coordinates_of(weights: NDArray[np.float32], quantum: float) -> NDArray[np.int32]:
    """Return weights / quantum, (n,) both; NO_COORDINATE for what is not a multiple of it, bit for bit."""
    with np.errstate(all="ignore"):  # whatever a changed bit has made
        nearest = np.rint(weights * np.float32(1 / quantum))
        coordinates: NDArray[np.int32] = nearest.astype(np.int32)
    exact = coordinates.astype(np.float32)
    exact *= np.float32(quantum)
    wrong = exact.view(np.uint32) != weights.view(np.uint32)
    if wrong.any():
        coordinates[wrong] = NO_COORDINATE
    return coordinates


def pass_over(
    source: NDArray[np.float32] | Point,
    delta: NDArray[Any],
    target: NDArray[np.float32],
    chains: Sequence[Segment],
    *,
    words: Words,
    negated: bool = False,
) -> list[PassResult]:
    """Set target = source + delta less what will be sent, all of P numbers, in the ranges of these chains;
    return what to send. `negated`: it is source - delta.

    The words found lie in `words` (sweep.words_max(),). ValueError, with `target` undefined and all else
    unchanged, if a sum is NaN or infinite.
    """
    found = []
    for chain in chains:
        room = words[: chain.room]
        counts: list[int] = []
        used, first_missed = 0, None
        for first, last in chain.ranges:
            before = used
            pieces: Iterable[tuple[int, NDArray[np.float32]]] = (
                source.pieces(first, last) if isinstance(source, Point) else ((first, source[first:last]),)
            )
            for begin, piece in pieces:
                end = begin + piece.size
                count, missed = codec.residual_pass(
                    piece,
                    delta[begin:end],
                    target[begin:end],
                    room[used:],
                    threshold=chain.threshold,
                    first=begin,
                    negated=negated,
                )
                used += count
                if missed is not None and first_missed is None:
                    first_missed = begin + missed
            counts.append(used - before)
        found.append(PassResult(room[:used], counts, first_missed))
        words = words[used:]
    return found


def _read_only(array: NDArray[np.float32]) -> NDArray[np.float32]:
    view = array.view()
    view.flags.writeable = False
    return view
