"""Installation of a snapshot: received and checked, caught up with, swapped in, and damage reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import RING, Origin
from p2psgd.core.owners.covers import Covers
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.state import State, magnitude_of
from p2psgd.core.update_log import OriginLog, UpdateLog
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.reject import PeerError, RejectCode
from p2psgd.wire.update import UpdateHeader, decode_update, parse_update, weights_of

# ----------------------------------------------------------------------------
# A snapshot on its way in: checked as it comes, whole or refused.
#
# Nothing of it touches the replica. The coordinates are verified slice by slice against the digest, so that
# the end has nothing left to compute. The frames of the donor's log come from each origin's newest to its
# oldest: the first must have the digest that its row states, and each of the others the one from which the
# frame after it goes on. They are handed to the log as they come, which keeps them where it has room.


COORDINATE_BYTES: Final = 4


class SnapshotIntake:
    """Takes covers and chunks, then the tail, then the end; of no use after a PeerError (reason "snapshot").

    When `end` has passed: `coordinates` int32 (P,) with `digest`, none beyond `magnitude_max`, `rows`, and
    in `origin_logs` each origin's frames of the tail, for the log to adopt or to discard.
    """

    def __init__(
        self,
        size: int,
        key: int,
        rows: list[FrontierRow],
        digest: int,
        *,
        log: UpdateLog,
        tail_bytes_max: int,
        bounded: bool = True,
        owners: bool = False,
    ) -> None:
        """Args: `rows` as `parse_frontier` gives them; `digest` that the coordinates must have; the frames of
        the tail, of at most `tail_bytes_max` bytes together, count in `log`. Not `bounded`: the coordinates
        are bit patterns (dense ring), whose magnitude is not looked at. `owners`: ranges of the weights have
        some.
        """
        self.rows = rows
        self.origin_logs = {Origin(row.node, row.incarnation): OriginLog(row.sequence) for row in rows}
        self.tail_count = 0
        self.magnitude_max = 0
        self.coordinates: NDArray[np.int32] = np.empty(size, np.int32)
        self.digest = digest
        self.covers = Covers()
        self._key = key
        self._bounded = bounded
        self._owners = owners
        self._digest_left = digest  # less that of the coordinates that came
        self._taken = 0
        self._log = log
        self._tail_bytes_left = tail_bytes_max
        # The digest that the next frame of each origin must have.
        self._digests = {origin: row.digest for origin, row in zip(self.origin_logs, rows, strict=True)}

    def cover(self, body: bytes | bytearray) -> None:
        """Take in what the updates of one more owner cover."""
        if not self._owners:
            raise _refusal("it has the cover of an owner, in a run whose ranges have none")
        try:
            self.covers.take(body)
        except PeerError as error:
            raise _refusal(str(error)) from None
        if not self.origin_logs.keys() >= set(self.covers.owners):
            raise _refusal("it has the cover of an owner of which it has no update")

    def chunk(self, body: bytes | bytearray) -> None:
        """Take in the next coordinates, little-endian int32."""
        count, rest = divmod(len(body), COORDINATE_BYTES)
        if rest or not count:
            raise _refusal(f"a chunk of {len(body)} bytes is not whole coordinates")
        end = self._taken + count
        if end > len(self.coordinates):
            raise _refusal(f"{end} coordinates came for a replica of {len(self.coordinates)}")
        part = self.coordinates[self._taken : end]
        part[:] = np.frombuffer(body, "<i4")
        if self._bounded:
            magnitude = magnitude_of(part)
            self.magnitude_max = max(self.magnitude_max, magnitude)
            if magnitude > codec.COORDINATE_MAX:
                raise _refusal(f"a coordinate of magnitude {magnitude} is beyond {codec.COORDINATE_MAX}")
        self._digest_left = (
            self._digest_left - codec.digest_coordinates(part, self._key, self._taken)
        ) % 2**64
        self._taken = end
        if end == len(self.coordinates) and self._digest_left:
            raise _refusal("its coordinates do not have its digest")

    def tail(self, body: bytes | bytearray) -> None:
        """Take in the body of an UPDATE frame from the donor's log."""
        self._check_coordinates()
        if not self._bounded:
            raise _refusal("it has frames of a log, and a dense ring has none")
        try:
            header, payload = parse_update(body, len(self.coordinates), owners=self._owners)
            words = decode_update(header, payload, len(self.coordinates))
        except PeerError as error:
            raise _refusal(f"frame {self.tail_count + 1} of its log: {error}") from None
        frame = pack_frame(FrameType.UPDATE, bytes(body))
        self._tail_bytes_left -= len(frame)
        if self._tail_bytes_left < 0:
            raise _refusal("the frames of its log have more bytes than there is room for")
        origin_log = self._precede(header, codec.digest_words(words, header.magnitude, self._key))
        self._log.receive(origin_log, frame)
        self.tail_count += 1

    def end(self, tail_count: int) -> None:
        """Check that all has come: the donor has sent its last frame, `tail_count` of them from its log."""
        self._check_coordinates()
        if self.tail_count != tail_count:
            raise _refusal(f"{self.tail_count} of its {tail_count} frames came")

    def digest_at(self, origin: Origin, sequence: int) -> int | None:
        """Return the origin's running digest after that update of it, by the snapshot's row or frames; None
        if they do not tell it.
        """
        origin_log = self.origin_logs.get(origin)
        if origin_log is None or not origin_log.trimmed_to <= sequence <= origin_log.last:
            return None
        if sequence == origin_log.trimmed_to:
            return self._digests[origin]
        frame = self._log.frame_of(origin_log.entries[origin_log.last - sequence])  # the newest came first
        return None if frame is None else parse_update(frame[PREFIX.size :], len(self.coordinates))[0].digest

    def discard(self) -> None:
        """Drop the frames of a snapshot that is not installed."""
        self._log.discard(self.origin_logs)

    def _check_coordinates(self) -> None:
        if self._taken < len(self.coordinates):
            raise _refusal(f"{self._taken} of {len(self.coordinates)} coordinates came")

    def _precede(self, header: UpdateHeader, contribution: int) -> OriginLog:
        """Return the place of a frame: before the last one of its origin, or else at the frontier."""
        origin = Origin(header.node, header.incarnation)
        who = f"update {header.sequence} of {origin.node:016x}"
        origin_log = self.origin_logs.get(origin)
        if origin_log is None or header.sequence != origin_log.trimmed_to:
            raise _refusal(
                f"{who} came where update {0 if origin_log is None else origin_log.trimmed_to} belongs"
            )
        if header.digest != self._digests[origin]:
            raise _refusal(f"{who} does not have the digest that what comes after it states")
        before = (header.digest - contribution) % 2**64
        if header.sequence == 1 and before:
            raise _refusal(f"{who} does not start at digest 0")
        self._digests[origin] = before
        return origin_log


def _refusal(words: str) -> PeerError:
    return PeerError(RejectCode.SNAPSHOT, f"a snapshot was refused: {words}")


# ----------------------------------------------------------------------------
# Does a snapshot agree with what this node knows? Looked at before anything of it is adopted.
#
# A snapshot is proven by its digest, which is a sum: two origins' rows whose errors cancel would pass, and
# the joiner would differ from the others ever after. But each origin's digest is known here for every update
# that is in the log or is the last one applied, and every frame leads from one digest to the next. So one
# update of which both tell the digest holds all the others of its origin. Of an origin of which this node
# lacks what the frames of neither begin with, nothing can be said.


Place = tuple[Origin, int]  # an origin and the sequence number of an update


def contradicted_by_rows(state: State, rows: Iterable[FrontierRow]) -> Place | None:
    """Return the first update after which a snapshot's frontier has another digest than this node."""
    for row in rows:
        origin = Origin(row.node, row.incarnation)
        if state.digest_at(origin, row.sequence) not in (None, row.digest):
            return origin, row.sequence
    return None


def contradicted_by(state: State, intake: SnapshotIntake) -> Place | None:
    """Return the first contradiction of a whole snapshot: in its frontier, or in its frames, where they begin
    and where they reach what is applied here.
    """
    place = contradicted_by_rows(state, intake.rows)
    if place is not None:
        return place
    for origin, origin_log in intake.origin_logs.items():
        for sequence in (origin_log.trimmed_to, state.frontier.sequence(origin)):
            told = intake.digest_at(origin, sequence)
            if told is not None and state.digest_at(origin, sequence) not in (None, told):
                return origin, sequence
    return None


# ----------------------------------------------------------------------------
# Which weights in memory were wrong: reported when a snapshot has replaced them.
#
# The old coordinates, plus the updates that only the snapshot has, must be the new ones; where they differ,
# memory had changed.


NAMED_MAX: Final = 3


class Damage:
    """Describes wrong weights: made before a snapshot replaces them, asked afterwards."""

    def __init__(self, state: State) -> None:
        self._coordinates = state.lattice.coordinates  # adopting puts others into their place
        self._applied = {origin: state.frontier.sequence(origin) for origin in state.frontier}

    def describe(self, rows: list[FrontierRow], state: State) -> str:
        """Return one sentence; `rows` are the snapshot's, `state` is the one after its installation."""
        if state.spec.dense and self._applied != {RING: state.frontier.sequence(RING)}:
            return "which weights were wrong cannot be told: a dense ring keeps no updates to compare them by"
        if not self._add_lacking(rows, state.log):
            return "which weights were wrong cannot be told: updates came in between that no log holds"
        return name_differences(state.spec, self._coordinates, state.lattice.coordinates)

    def _add_lacking(self, rows: list[FrontierRow], log: UpdateLog) -> bool:
        """Bring the old coordinates to where the snapshot is; False if frames for that are missing."""
        coordinates = len(self._coordinates)
        for row in rows:
            origin = Origin(row.node, row.incarnation)
            for sequence in range(self._applied.get(origin, 0) + 1, row.sequence + 1):
                frame = log.frame(origin, sequence)
                if frame is None:
                    return False
                header, payload = parse_update(frame[PREFIX.size :], coordinates)
                words = decode_update(header, payload, coordinates)
                codec.apply_coordinates(self._coordinates, words, header.magnitude)
        return True


def name_differences(spec: RunSpec, old: NDArray[np.int32], new: NDArray[np.int32]) -> str:
    """Return one sentence on the coordinates that differ, int32 (C,) both."""
    wrong = np.flatnonzero(old != new)
    return name_coordinates(spec, old, new, wrong[:NAMED_MAX].tolist(), len(wrong))


def name_coordinates(
    spec: RunSpec, old: NDArray[np.int32], new: NDArray[np.int32], first: list[int], count: int
) -> str:
    """Return the same sentence for a known number of wrong weights and the `first` of them."""
    named = first[:NAMED_MAX]
    counts = np.array(named) >= spec.weights  # shard counts, which have no quantum
    was, now = (
        np.where(
            counts,
            coordinates[named],
            weights_of(coordinates[named], mode=spec.mode, quantum_log2=spec.quantum_log2),
        )
        for coordinates in (old, new)
    )
    each = [
        f"{spec.name_coordinate(index)} was {was[place]:g} instead of {now[place]:g}"
        for place, index in enumerate(named)
    ]
    if count > NAMED_MAX:
        each.append(f"{count - NAMED_MAX} more were wrong")
    return "; ".join(each) or "no weight is wrong any more"


# ----------------------------------------------------------------------------
# From a snapshot that has come whole to a replica that has all it had before, and nothing of it twice.
#
# What is applied here and not in the snapshot is applied to the snapshot's coordinates first, from the log,
# some in each turn, while the replica goes on as it is. When all of it is in, the two change places in one
# step: nobody ever sees, and nothing is ever sent from, a state in between.


BYTES_PER_TURN: Final = 128 * 1024  # of frames, each counted with FRAME_BYTES for what it costs by itself
FRAME_BYTES: Final = 512


class ContradictionError(Exception):
    """A snapshot and this node differ in what they say of an origin at an update, by default its digest."""

    def __init__(self, place: Place, what: str = "digest") -> None:
        super().__init__(place)
        self.place = place
        self.what = what


class Adoption:
    """Installs one snapshot into one state; `applied_again` updates so far."""

    def __init__(self, state: State, intake: SnapshotIntake) -> None:
        """Require that `state.lost_by` is 0."""
        self.applied_again = 0
        self._state = state
        self._intake = intake
        self._digest = intake.digest
        self._rows = {Origin(row.node, row.incarnation): row for row in intake.rows}
        self._frame_bytes: dict[Origin, int] = {}  # of what was applied again
        self._version = state.frontier.version

    @property
    def overtaken(self) -> bool:
        """Return whether the log was trimmed beyond what is applied again: every member had it meanwhile."""
        return self._state.lost_by({origin: row.sequence for origin, row in self._rows.items()}) > 0

    def turn(self) -> bool:
        """Apply some updates; True when none is lacking any more, and `finish` may be called in this turn.

        ContradictionError if one of an origin does not go on from what the snapshot states, LookupError
        if it is the log here that is wrong. Nothing has changed then.
        """
        frontier = self._state.frontier
        if self._state.spec.dense:
            return True  # nothing is applied to it: the snapshot is what was agreed on, this node is not
        least = frontier.version - self._version + 1  # more than came since the last turn, so that it ends
        self._version = frontier.version
        left = BYTES_PER_TURN
        for origin in frontier:
            while self._sequence(origin) < frontier.sequence(origin):
                if left <= 0 and least <= 0:
                    return False
                left -= self._apply_next(origin) + FRAME_BYTES
                least -= 1
        for origin in self._frame_bytes:
            if self._rows[origin].digest != frontier.digest(origin):
                words = f"the updates of {origin.node:016x} in the log do not lead to its digest"
                raise LookupError(words)
        return True

    def finish(self, *, damaged: bool) -> str:
        """Swap the snapshot in. If the old weights were `damaged`, return a sentence on which."""
        damage = Damage(self._state) if damaged else None
        state, intake = self._state, self._intake
        state.replace(
            intake.coordinates,
            self._rows.values(),
            self._digest,
            magnitude_max=intake.magnitude_max,
            covers=intake.covers,
        )
        if state.spec.dense:  # it may be behind what this node had
            state.log.discard(intake.origin_logs)
            state.log.pass_over(RING, state.frontier.sequence(RING))
        else:
            state.log.adopt(intake.origin_logs, self._frame_bytes)
        return "" if damage is None else damage.describe(self._intake.rows, self._state)

    def discard(self) -> None:
        """Give up the installation."""
        self._intake.discard()

    def _sequence(self, origin: Origin) -> int:
        row = self._rows.get(origin)
        return 0 if row is None else row.sequence

    def _apply_next(self, origin: Origin) -> int:
        """Apply one more update of this origin; return the bytes of its frame."""
        row = self._rows.get(origin) or FrontierRow(*origin, 0, 0)
        header, words, size = next(self._state.held(origin, row.sequence, row.sequence + 1))
        contribution = self._state.contribution(words, header.magnitude)
        if (row.digest + contribution) % 2**64 != header.digest:
            if origin in self._rows and origin not in self._frame_bytes:
                raise ContradictionError((origin, row.sequence))
            who = f"update {header.sequence} of {origin.node:016x} in the log"
            raise LookupError(f"{who} does not go on from the one before")
        if header.cover:
            try:
                self._intake.covers.check(origin, header.cover)
            except PeerError:  # the snapshot's cover is wrong: here the update was right
                raise ContradictionError((origin, header.sequence), "cover") from None
            self._intake.covers.note(origin, header.cover)
        largest, _ = codec.apply_coordinates(self._intake.coordinates, words, header.magnitude)
        self._intake.magnitude_max = max(self._intake.magnitude_max, largest)
        self._digest = (self._digest + contribution) % 2**64
        self._rows[origin] = row._replace(sequence=header.sequence, digest=header.digest, steps=header.steps)
        self._frame_bytes[origin] = self._frame_bytes.get(origin, 0) + size
        self.applied_again += 1
        return size
