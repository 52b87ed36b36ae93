"""A snapshot on its way in: checked as it comes, whole or refused.

Nothing of it touches the replica. The coordinates are verified slice by slice against the digest, so that
the end has nothing left to compute; the frames of the donor's log must continue each origin's digest up to
the one that its row states.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.lattice import magnitude_of
from p2psgd.errors import PeerError
from p2psgd.wire import codec
from p2psgd.wire.frames import UPDATE_HEADER_BYTES, FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.update import UpdateHeader, parse_update

COORDINATE_BYTES: Final = 4


class SnapshotIntake:
    """Takes chunks, then the tail, then the end; after a PeerError (reason "snapshot") it is of no use.

    When `end` has passed: `coordinates` int32 (P,), `frontier` with each origin's sequence and digest,
    `frames` of the tail, whole UPDATE frames with their origin and sequence, and in `began` the sequence and
    digest before the first of each origin.
    """

    def __init__(
        self,
        weights: int,
        key: int,
        rows: list[FrontierRow],
        digest: int,
        tail_count: int,
        *,
        tail_bytes_max: int,
    ) -> None:
        """`rows` as `parse_frontier` gives them; `digest` that the coordinates must have; `tail_count` frames
        of at most `tail_bytes_max` bytes together. PeerError if that cannot be.
        """
        updates = sum(row.sequence for row in rows)
        if tail_count > updates:
            raise _refusal(f"it announces {tail_count} frames of {updates} updates")
        if tail_count * UPDATE_HEADER_BYTES > tail_bytes_max:
            raise _refusal(f"it announces {tail_count} frames, for which {tail_bytes_max} bytes are too few")
        self.frontier = {Origin(row.node, row.incarnation): (row.sequence, row.digest) for row in rows}
        self.frames: list[tuple[Origin, int, bytes]] = []
        self.began: dict[Origin, tuple[int, int]] = {}
        self.coordinates: NDArray[np.int32] = np.empty(weights, np.int32)
        self.digest = digest
        self.magnitude = 0  # of the largest coordinate that came
        self._key = key
        self._digest_left = digest  # less that of the coordinates that came
        self._taken = 0
        self._tail_count = tail_count
        self._tail_bytes_left = tail_bytes_max
        self._last: dict[Origin, tuple[int, int]] = {}  # sequence and digest of the tail's frames so far
        self._unfinished = 0  # origins whose frames have not come to their row yet

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
        magnitude = magnitude_of(part)
        self.magnitude = max(self.magnitude, magnitude)
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
        if len(self.frames) == self._tail_count:
            raise _refusal(f"more than the {self._tail_count} frames it announced came")
        frame = pack_frame(FrameType.UPDATE, bytes(body))
        self._tail_bytes_left -= len(frame)
        if self._tail_bytes_left < 0:
            raise _refusal(f"its {self._tail_count} frames have more bytes than there is room for")
        try:
            header, payload = parse_update(body, len(self.coordinates))
            words = codec.decode(payload, header.count, len(self.coordinates))
        except PeerError as error:
            raise _refusal(f"frame {len(self.frames) + 1} of its log: {error}") from None
        self._follow(header, codec.digest_words(words, header.step, self._key))
        self.frames.append((Origin(header.node, header.incarnation), header.sequence, frame))

    def end(self) -> None:
        """The donor says that it is whole."""
        self._check_coordinates()
        if len(self.frames) < self._tail_count:
            raise _refusal(f"{len(self.frames)} of its {self._tail_count} frames came")
        if self._unfinished:
            raise _refusal(f"the frames of {self._unfinished} origins end before its frontier")

    def _check_coordinates(self) -> None:
        if self._taken < len(self.coordinates):
            raise _refusal(f"{self._taken} of {len(self.coordinates)} coordinates came")

    def _follow(self, header: UpdateHeader, contribution: int) -> None:
        """The frame goes on from the one before of its origin, and leads to what the frontier says."""
        origin = Origin(header.node, header.incarnation)
        who = f"update {header.sequence} of {origin.node:016x}"
        sequence, digest = self.frontier.get(origin, (0, 0))
        if header.sequence > sequence:
            raise _refusal(f"{who} is beyond its frontier, which is at {sequence}")
        before = (header.digest - contribution) % 2**64
        if origin not in self._last:
            self._unfinished += 1
            last = (header.sequence - 1, before if header.sequence > 1 else 0)
            self.began[origin] = last
        else:
            last = self._last[origin]
        if header.sequence != last[0] + 1:
            raise _refusal(f"{who} came after update {last[0]}")
        if before != last[1]:
            raise _refusal(f"{who} does not fit its digest")
        if header.sequence == sequence:
            self._unfinished -= 1
            if header.digest != digest:
                raise _refusal(f"{who} does not have the digest that its frontier states")
        self._last[origin] = (header.sequence, header.digest)


def _refusal(words: str) -> PeerError:
    return PeerError("snapshot", f"a snapshot was refused: {words}")
