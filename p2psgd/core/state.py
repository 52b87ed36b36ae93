"""The quantized weights, everything that changes with them in one step, and the headers of own updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.events import Restored
from p2psgd.core.frontier import RING, Frontier, Origin
from p2psgd.core.owners.covers import Covers
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.update_log import UpdateLog
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader, decode_update, parse_update

# ----------------------------------------------------------------------------
# The weights as integers: exact, so that updates may come in any order and every replica still has the same
# bits.
#
# weight = quantum * coordinate. float32, in which trainers compute, holds quantum * k exactly up to |k| =
# 2^24; a coordinate beyond it ends the run with the weight's name, instead of letting trainers drift apart
# from the replica. Nothing is ever clipped or decayed here.
#
# In a dense ring the coordinates are the bit patterns of float32 weights instead (wire/update.py). Digests do
# not mind; magnitudes mean nothing there, so they are neither looked at nor bounded.


@dataclass(frozen=True, slots=True)
class RangeWarning:
    """A coordinate came near (or passed: `fatal`) the last one that float32 holds exactly."""

    index: int
    magnitude: int
    fatal: bool

    def describe(self, spec: RunSpec) -> str:
        """Return a sentence that names the weight and the quantum and what to do, or the shard count."""
        name, magnitude = spec.name_coordinate(self.index), self.magnitude * spec.quantum
        if self.index >= spec.weights:
            end = "past" if self.fatal else "the run stops at"
            return f"{name} has reached {self.magnitude}, {end} {codec.COORDINATE_MAX}, the largest possible"
        largest = codec.COORDINATE_MAX * spec.quantum
        limit = f"{largest:g}, the largest that quantum 2^{spec.quantum_log2} can hold"
        if not self.fatal:
            return f"weight {name} has reached {magnitude:g} in magnitude; the run stops at {limit}"
        return (
            f"weight {name} has reached {magnitude:g} in magnitude, past {limit}: "
            "the run has diverged, or needs a lower learning rate or a larger quantum"
        )


class QuantizedWeights:
    """The coordinates int32 (C,) of one replica and their digest; not `bounded`: they are bit patterns."""

    def __init__(self, coordinates: NDArray[np.int32], *, key: int, bounded: bool = True) -> None:
        self.coordinates = coordinates
        self.magnitude_max = magnitude_of(coordinates) if bounded else 0
        self.key = key
        self._bounded = bounded
        self._warned = self.magnitude_max > codec.COORDINATE_WARN
        self.initial_digest = self.recompute_digest()
        self.digest = self.initial_digest

    def recompute_digest(self) -> int:
        """Return sum(coordinate_i * h(i)) mod 2^64 over the real weights, not the running sum."""
        return codec.digest_coordinates(self.coordinates, self.key)

    def replace(
        self, coordinates: NDArray[np.int32], digest: int, *, magnitude_max: int | None = None
    ) -> None:
        """Take over other coordinates int32 (C,), checked to have this digest; nobody else may write them.

        `magnitude_max`: that none is beyond; None: look at all of them.
        """
        assert coordinates.shape == self.coordinates.shape, (coordinates.shape, self.coordinates.shape)
        self.coordinates = coordinates
        self.digest = digest
        if self._bounded:
            self.magnitude_max = magnitude_of(coordinates) if magnitude_max is None else magnitude_max
        self._warned = self.magnitude_max > codec.COORDINATE_WARN

    def apply(self, words: NDArray[np.uint32], magnitude: int, contribution: int) -> RangeWarning | None:
        """Add +-step to the weights that `words` name; `contribution` is what that adds to the digest.

        Warns once past 2^23, always past 2^24.
        """
        largest, index = codec.apply_coordinates(self.coordinates, words, magnitude)
        self.digest = (self.digest + contribution) % 2**64
        if largest <= self.magnitude_max:
            return None
        self.magnitude_max = largest
        if largest > codec.COORDINATE_MAX:
            return RangeWarning(index, largest, fatal=True)
        if largest > codec.COORDINATE_WARN and not self._warned:
            self._warned = True
            return RangeWarning(index, largest, fatal=False)
        return None


def magnitude_of(coordinates: NDArray[np.int32]) -> int:
    """Return the largest |coordinate|, without a copy of them all."""
    return max(int(coordinates.max(initial=0)), -int(coordinates.min(initial=0)))


# ----------------------------------------------------------------------------
# The weights and all that must change with them in one go: frontier, log, running digest.
#
# Nothing here decides; every change is whole or not made.


U64_MODULUS = 2**64


class SliceScan(Protocol):
    """Goes over the coordinates in slices while they change; `note` reports each change to it."""

    def note(self, words: NDArray[np.uint32], magnitude: int) -> None: ...

    def leave_behind(self, rows: list[FrontierRow], digest: int) -> None:
        """Note that the replica has other coordinates now. Those that this goes over stay as they are until
        it is through, at the frontier `rows` with `digest`.
        """

    def reads(self, coordinates: NDArray[np.int32]) -> bool:
        """Return whether it goes over these coordinates."""


class State:
    """A replica's content: coordinates, frontier and log."""

    def __init__(self, spec: RunSpec, me: Origin, coordinates: NDArray[np.int32], log: UpdateLog) -> None:
        self.spec = spec
        self.dense = spec.dense
        self.me = me
        self.lattice = QuantizedWeights(coordinates, key=spec.key, bounded=not spec.dense)
        self.frontier = Frontier()
        self.log = log
        self.sweeps: list[SliceScan] = []
        self.covers = Covers()  # of owners
        self.rounds = 0  # of a sparse ring: so many are complete; a dense one has them in its frontier

    def contribution(self, words: NDArray[np.uint32], magnitude: int) -> int:
        """Return what an update adds to its origin's digest, and to that of the weights."""
        return codec.digest_words(words, magnitude, self.spec.key)

    def digest_after(self, origin: Origin, words: NDArray[np.uint32], magnitude: int) -> int:
        """Return the origin's running digest once this update of it is applied."""
        return (self.frontier.digest(origin) + self.contribution(words, magnitude)) % U64_MODULUS

    def digest_at(self, origin: Origin, sequence: int) -> int | None:
        """Return the origin's running digest after that update of it; None if nothing here shows it."""
        if sequence == self.frontier.sequence(origin):
            return self.frontier.digest(origin)
        if sequence == 0:
            return 0
        frame = self.log.frame(origin, sequence)
        try:
            if frame is not None:
                return parse_update(memoryview(frame)[PREFIX.size :], self.spec.coordinates)[0].digest
            header, words, _ = next(self.held(origin, sequence, sequence + 1))
            return (header.digest - self.contribution(words, header.magnitude)) % U64_MODULUS
        except (LookupError, PeerError):  # the latter: it has changed in memory
            return None

    def apply(
        self, origin: Origin, header: UpdateHeader, words: NDArray[np.uint32], frame: bytes
    ) -> RangeWarning | None:
        """Apply an update of `origin` that has passed every check: to log, weights and frontier."""
        self.log.append(origin, header.sequence, frame)
        return self._apply(origin, header, words)

    def _apply(self, origin: Origin, header: UpdateHeader, words: NDArray[np.uint32]) -> RangeWarning | None:
        contribution = header.digest - self.frontier.digest(origin)  # checked: what the header says is so
        warning = self.lattice.apply(words, header.magnitude, contribution)
        for sweep in self.sweeps:
            sweep.note(words, header.magnitude)
        self.frontier.advance(origin, header.sequence, header.digest, header.steps)
        if header.cover:
            self.covers.note(origin, header.cover)
        return warning

    def complete_round(
        self, coordinates: NDArray[np.int32], digest: int, *, view: int, number: int
    ) -> NDArray[np.int32]:
        """Complete round `number` of a dense ring in `view`: `coordinates` int32 (P,) with `digest`, which no
        one else may write, are the weights after it. Returns those before, for another use once no sweep
        `is_reading` them.
        """
        rows, before = self.frontier.rows(), self.lattice.coordinates
        for sweep in self.sweeps:
            sweep.leave_behind(rows, self.lattice.digest)
        self.lattice.replace(coordinates, digest)
        sequence = self.frontier.sequence_after(view, number)
        self.frontier.jump(sequence, (digest - self.lattice.initial_digest) % U64_MODULUS, number)
        self.log.pass_over(RING, sequence)
        return before

    def check_origins(self, rows: Mapping[Origin, FrontierRow]) -> None:
        """Raise PeerError if a frontier of this run cannot have these rows, which ascend: a dense ring has
        RING alone, and in any other run no origin is of node 0.
        """
        if self.dense:
            if rows.keys() <= {RING}:
                return
            raise PeerError(
                RejectCode.ORIGIN, "a frontier names an origin beside (0, 0), which a dense ring has alone"
            )
        first = next(iter(rows), None)
        if first is not None and first.node == RING.node:
            raise PeerError(
                RejectCode.ORIGIN, "a frontier names an origin of node 0, which only a dense ring has"
            )

    def is_reading(self, coordinates: NDArray[np.int32]) -> bool:
        """Return whether a sweep under way goes over these, whether they are still the replica's or not."""
        return any(sweep.reads(coordinates) for sweep in self.sweeps)

    def fits(self, rows: list[FrontierRow], digest: int) -> bool:
        """Return whether a replica of this run at the frontier `rows` has this digest."""
        return self.digest_of(rows) == digest

    def digest_of(self, rows: list[FrontierRow]) -> int:
        """Return the digest of a replica of this run at the frontier `rows`."""
        return (self.lattice.initial_digest + sum(row.digest for row in rows)) % U64_MODULUS

    def replace(
        self,
        coordinates: NDArray[np.int32],
        rows: Iterable[FrontierRow],
        digest: int,
        *,
        magnitude_max: int | None = None,
        covers: Covers | None = None,
    ) -> None:
        """Install other coordinates int32 (C,), as QuantizedWeights.replace wants them, their frontier, and
        what owners' updates up to there cover; None: as before. Sweeps under way are dropped.
        """
        self.sweeps.clear()
        self.lattice.replace(coordinates, digest, magnitude_max=magnitude_max)
        self.frontier.replace(rows)
        if covers is not None:
            self.covers = covers

    def restore(self, restored: Restored) -> dict[Origin, int]:
        """Become what came from the disk, own updates since the checkpoint included; what the checkpoint
        itself holds. The initial digest follows from it: the initial coordinates need not be known.
        """
        covers = Covers(restored.covers)
        self.replace(restored.coordinates, restored.rows, restored.digest, covers=covers)
        self.rounds = restored.rounds
        changes = sum(row.digest for row in restored.rows)
        self.lattice.initial_digest = (restored.digest - changes) % U64_MODULUS
        saved = {origin: self.frontier.sequence(origin) for origin in self.frontier}
        tail: dict[Origin, list[bytes]] = {origin: [] for origin in saved}
        for frame in restored.tail:
            header, _ = parse_update(frame[PREFIX.size :], self.spec.coordinates)
            tail[Origin(header.node, header.incarnation)].append(frame)
        for origin, frames in tail.items():
            trimmed_to = saved[origin] - len(frames)
            self.log.start(origin, trimmed_to)
            for sequence, frame in enumerate(frames, trimmed_to + 1):
                self.log.append(origin, sequence, frame)
        for frame in restored.own:
            header, payload = parse_update(frame[PREFIX.size :], self.spec.coordinates)
            origin = Origin(header.node, header.incarnation)
            if header.sequence == self.frontier.sequence(origin) + 1:
                self.apply(origin, header, decode_update(header, payload, self.spec.coordinates), frame)
        return saved

    def lost_by(self, has: Mapping[Origin, int]) -> int:
        """Return how many updates applied here would be lost by becoming a replica with the frontier `has`:
        those beyond it that the log no longer holds. In a dense ring none: the node with the lower round
        takes what the others agreed on.
        """
        if self.spec.dense:
            return 0
        return sum(
            max(0, self.log.trimmed_to(origin) - has.get(origin, 0))
            for origin in self.frontier
            if self.frontier.sequence(origin) > has.get(origin, 0)
        )

    def held(
        self, origin: Origin, after: int, last: int
    ) -> Iterator[tuple[UpdateHeader, NDArray[np.uint32], int]]:
        """Yield the updates after + 1 to `last` of an origin, from the log, each with the bytes of its frame;
        LookupError at one that is not there or has changed in memory.
        """
        for sequence in range(after + 1, last + 1):
            frame = self.log.frame(origin, sequence)
            if frame is None:
                raise LookupError(f"update {sequence} of {origin.node:016x} cannot be read from the log")
            try:
                header, payload = parse_update(memoryview(frame)[PREFIX.size :], self.spec.coordinates)
                yield header, decode_update(header, payload, self.spec.coordinates), len(frame)
            except PeerError as error:
                words = f"update {sequence} of {origin.node:016x} is damaged in the log: {error}"
                raise LookupError(words) from None


# ----------------------------------------------------------------------------
# The header of an update that this node's trainer made.


def next_header(state: State, made: OwnUpdateMade, before: tuple[int, int]) -> UpdateHeader:
    """Return the header of the update that comes after the one with this sequence number and running
    digest.
    """
    sequence, digest = before
    return UpdateHeader(
        *state.me,
        sequence=sequence + 1,
        digest=(digest + state.contribution(made.words, made.magnitude)) % U64_MODULUS,
        steps=made.steps,
        magnitude=made.magnitude,
        count=len(made.words),
    )
