"""Feed the frames of one snapshot to one joiner.

The frames hold one consistent state, that of the moment when the copy was done: coordinates, frontier, and
the frames of the log up to it that not every other member has acknowledged. Without those frames two crashes
could leave two replicas that each hold something the other can never get.

Nothing is pinned for it, and no frame is taken out of the log before the link takes it. Of each origin the
newest comes first, so that the received part is whole at any moment. If a frame has left the log meanwhile,
all members have it, and those before it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin
from p2psgd.core.update_log import UpdateLog
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
        *,
        covers: list[bytes],
        log: UpdateLog,
        acknowledged: Callable[[], Callable[[Origin], int]],
        give_back: Callable[[NDArray[np.int32]], None],
        now: float,
    ) -> None:
        """Begin a feed; `covers` are the packed Covers of owners, and `acknowledged` returns what gives up to
        where all other members have an origin's updates by now.
        """
        self.frames_sent = 0
        self.bytes_total = 4 * len(coordinates) + log.pinned_bytes(acknowledged())  # about
        self.bytes_sent = 0
        self.began = self.moved = now  # `moved`: when the link last took one
        self._coordinates: NDArray[np.int32] | None = coordinates
        self._give_back = give_back
        self._log = log
        self._acknowledged = acknowledged
        self._frames = self._produce(coordinates, rows, digest, covers)

    def _produce(
        self, coordinates: NDArray[np.int32], rows: list[FrontierRow], digest: int, covers: list[bytes]
    ) -> Iterator[bytes]:
        yield pack_message(SnapshotMeta(frontier=pack_frontier(rows), digest=digest))
        for cover in covers:
            yield pack_frame(FrameType.SNAPSHOT_COVER, cover)
        weights = np.ascontiguousarray(coordinates, dtype="<i4").data.cast("B")
        for start in range(0, len(weights), CHUNK_BYTES):
            yield pack_frame(FrameType.SNAPSHOT_CHUNK, bytes(weights[start : start + CHUNK_BYTES]))
        self.close()
        count = 0
        for frame in self._tail(rows):
            count += 1
            yield pack_frame(FrameType.SNAPSHOT_TAIL, frame[PREFIX.size :])
        yield pack_message(SnapshotEnd(reason="", tail=count))

    def _tail(self, rows: list[FrontierRow]) -> Iterator[bytes]:
        acknowledged = self._acknowledged()
        for row in rows:
            origin = Origin(row.node, row.incarnation)
            if self._log.trimmed_to(origin) >= row.sequence:
                continue
            for sequence in range(row.sequence, acknowledged(origin), -1):
                frame = self._log.frame(origin, sequence)
                if frame is None:
                    break
                yield frame

    def take(self, now: float) -> bytes | None:
        """Return the next frame, or None after the last."""
        frame = next(self._frames, None)
        if frame is not None:
            self.frames_sent += 1
            self.bytes_sent += len(frame)
            self.moved = now
        return frame

    def close(self) -> None:
        """Give the coordinates back: all are sent, or the joiner takes no more."""
        coordinates, self._coordinates = self._coordinates, None
        if coordinates is not None:
            self._give_back(coordinates)
