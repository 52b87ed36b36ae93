"""The donor's side of a snapshot: one at a time, copied in slices, sent as the link takes it.

What is sent is one consistent state, that of the moment when the copy was done: coordinates, frontier, and
the frames of the log that not every other member has acknowledged. Without those frames two crashes could
leave two replicas that each hold something the other can never get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow, SnapshotEnd, SnapshotMeta, pack_frontier, pack_message

CHUNK_BYTES: Final = 256 * 1024  # 20 ms of a 100 Mbit/s link: updates in between wait no longer


class SnapshotFeed:
    """The frames of one snapshot, in order; `coordinates` int32 (P,) must not change until `give_back` gets
    them.
    """

    def __init__(
        self,
        coordinates: NDArray[np.int32],
        rows: list[FrontierRow],
        digest: int,
        tail: list[bytes],
        *,
        give_back: Callable[[NDArray[np.int32]], None],
        now: float,
    ) -> None:
        self.frames_sent = 0
        self.bytes_total = 4 * len(coordinates) + sum(map(len, tail))
        self.bytes_sent = 0
        self.began = self.moved = now  # `moved`: when the link last took one
        self._coordinates: NDArray[np.int32] | None = coordinates
        self._give_back = give_back
        self._frames = self._produce(coordinates, rows, digest, tail)
        self._next = next(self._frames)

    def _produce(
        self, coordinates: NDArray[np.int32], rows: list[FrontierRow], digest: int, tail: list[bytes]
    ) -> Iterator[bytes]:
        yield pack_message(SnapshotMeta(frontier=pack_frontier(rows), digest=digest, tail=len(tail)))
        weights = np.ascontiguousarray(coordinates, dtype="<i4").data.cast("B")
        for start in range(0, len(weights), CHUNK_BYTES):
            yield pack_frame(FrameType.SNAPSHOT_CHUNK, bytes(weights[start : start + CHUNK_BYTES]))
        self.close()
        for frame in tail:
            yield pack_frame(FrameType.SNAPSHOT_TAIL, frame[PREFIX.size :])
        yield pack_message(SnapshotEnd(words=""))

    def take(self, now: float) -> bytes | None:
        """The next frame, or None after the last."""
        frame = next(self._frames, None) if self.frames_sent else self._next
        if frame is not None:
            self.frames_sent += 1
            self.bytes_sent += len(frame)
            self.moved = now
        return frame

    def close(self) -> None:
        """The coordinates are not read any more: all are sent, or nobody takes them."""
        coordinates, self._coordinates = self._coordinates, None
        if coordinates is not None:
            self._give_back(coordinates)
