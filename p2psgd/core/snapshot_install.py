"""A snapshot on its way in: checked as it comes, whole or refused.

Nothing of it touches the replica. The coordinates are verified slice by slice against the digest, so that
the end has nothing left to compute. The frames of the donor's log come from each origin's newest to its
oldest: the first must have the digest that its row states, and each of the others the one from which the
frame after it goes on. They are handed to the log as they come, which keeps them where it has room.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.update_log import Lane, UpdateLog
from p2psgd.core.weights import magnitude_of
from p2psgd.errors import PeerError
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.update import UpdateHeader, parse_update

COORDINATE_BYTES: Final = 4


class SnapshotIntake:
    """Takes chunks, then the tail, then the end; after a PeerError (reason "snapshot") it is of no use.

    When `end` has passed: `coordinates` int32 (P,) with `digest`, none beyond `magnitude_max`, `rows`, and
    in `lanes` each origin's frames of the tail, for the log to adopt or to discard.
    """

    def __init__(
        self,
        weights: int,
        key: int,
        rows: list[FrontierRow],
        digest: int,
        *,
        log: UpdateLog,
        tail_bytes_max: int,
        bounded: bool = True,
    ) -> None:
        """`rows` as `parse_frontier` gives them; `digest` that the coordinates must have; the frames of the
        tail, of at most `tail_bytes_max` bytes together, count in `log`. Not `bounded`: the coordinates are
        bit patterns (dense ring), whose magnitude is not looked at.
        """
        self.rows = rows
        self.lanes = {Origin(row.node, row.incarnation): Lane(row.sequence) for row in rows}
        self.tail_count = 0
        self.magnitude_max = 0
        self.coordinates: NDArray[np.int32] = np.empty(weights, np.int32)
        self.digest = digest
        self._key = key
        self._bounded = bounded
        self._digest_left = digest  # less that of the coordinates that came
        self._taken = 0
        self._log = log
        self._tail_bytes_left = tail_bytes_max
        # The digest that the next frame of each origin must have.
        self._digests = {origin: row.digest for origin, row in zip(self.lanes, rows, strict=True)}

    def chunk(self, body: bytes | bytearray) -> None:
        """The next coordinates, little-endian int32."""
        count, rest = divmod(len(body), COORDINATE_BYTES)
        if rest or not count:
            raise _refusal(f"a chunk of {len(body)} bytes is not whole coordinates")
        end = self._taken + count
        if end > len(self.coordinates):
            raise _refusal(f"{end} coordinates came for {len(self.coordinates)} weights")
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
        """The body of an UPDATE frame from the donor's log."""
        self._check_coordinates()
        if not self._bounded:
            raise _refusal("it has frames of a log, and a dense ring has none")
        try:
            header, payload = parse_update(body, len(self.coordinates))
            words = codec.decode(payload, header.count, len(self.coordinates))
        except PeerError as error:
            raise _refusal(f"frame {self.tail_count + 1} of its log: {error}") from None
        frame = pack_frame(FrameType.UPDATE, bytes(body))
        self._tail_bytes_left -= len(frame)
        if self._tail_bytes_left < 0:
            raise _refusal("the frames of its log have more bytes than there is room for")
        lane = self._precede(header, codec.digest_words(words, header.step, self._key))
        self._log.receive(lane, frame)
        self.tail_count += 1

    def end(self, tail_count: int) -> None:
        """The donor says that it is whole, with so many frames of its log."""
        self._check_coordinates()
        if self.tail_count != tail_count:
            raise _refusal(f"{self.tail_count} of its {tail_count} frames came")

    def digest_at(self, origin: Origin, sequence: int) -> int | None:
        """The origin's running digest after that update of it, by the snapshot's row or frames; None if they
        do not tell it.
        """
        lane = self.lanes.get(origin)
        if lane is None or not lane.floor <= sequence <= lane.last:
            return None
        if sequence == lane.floor:
            return self._digests[origin]
        frame = self._log.frame_of(lane.entries[lane.last - sequence])  # the newest came first
        return None if frame is None else parse_update(frame[PREFIX.size :], len(self.coordinates))[0].digest

    def discard(self) -> None:
        """It is not taken: let go of its frames."""
        self._log.discard(self.lanes)

    def _check_coordinates(self) -> None:
        if self._taken < len(self.coordinates):
            raise _refusal(f"{self._taken} of {len(self.coordinates)} coordinates came")

    def _precede(self, header: UpdateHeader, contribution: int) -> Lane:
        """Where the frame belongs: before the one of its origin that came last, or else at the frontier."""
        origin = Origin(header.node, header.incarnation)
        who = f"update {header.sequence} of {origin.node:016x}"
        lane = self.lanes.get(origin)
        if lane is None or header.sequence != lane.floor:
            raise _refusal(f"{who} came where update {0 if lane is None else lane.floor} belongs")
        if header.digest != self._digests[origin]:
            raise _refusal(f"{who} does not have the digest that what comes after it states")
        before = (header.digest - contribution) % 2**64
        if header.sequence == 1 and before:
            raise _refusal(f"{who} does not start at digest 0")
        self._digests[origin] = before
        return lane


def _refusal(words: str) -> PeerError:
    return PeerError("snapshot", f"a snapshot was refused: {words}")
