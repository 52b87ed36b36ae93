"""The log: frames of updates, kept so that any holder can give them to whoever lacks them.

One log for all peers: a slow peer is a cursor that lags, not a queue that grows. Memory is bounded by the
budget alone; past it the oldest updates leave, whoever may lack them, and a peer that asks for one is told
GAP. Nothing leaves before the budget is needed, so a node that starts late or lost its memory can be
replayed the whole run while that still fits.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from p2psgd.core.frontier import Origin

ENTRY_BYTES: Final = 250  # of memory that a frame costs beside its own bytes: objects, dict and queue entries


class UpdateLog:
    """Frames by origin and sequence number; contiguous from floor + 1 for each origin."""

    def __init__(self, *, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes_held = 0
        self._frames: dict[Origin, dict[int, bytes]] = {}
        self._floors: dict[Origin, int] = {}
        self._arrival: deque[Origin] = deque()

    def __len__(self) -> int:
        return len(self._arrival)

    def append(self, origin: Origin, sequence: int, frame: bytes) -> None:
        """Keep one more frame of `origin`; sequences come without holes. Drops the oldest of all while over
        budget.
        """
        frames = self._frames.setdefault(origin, {})
        assert sequence == self._floors.get(origin, 0) + len(frames) + 1, (origin, sequence)
        frames[sequence] = frame
        self._arrival.append(origin)
        self.bytes_held += len(frame) + ENTRY_BYTES
        while self.bytes_held > self.budget_bytes and len(self._arrival) > 1:
            self._drop_oldest()

    def frame(self, origin: Origin, sequence: int) -> bytes | None:
        """The frame, or None if it has left or was never here."""
        return self._frames.get(origin, {}).get(sequence)

    def floor(self, origin: Origin) -> int:
        """The last sequence of `origin` that has left the log, 0 if none."""
        return self._floors.get(origin, 0)

    def _drop_oldest(self) -> None:
        origin = self._arrival.popleft()
        sequence = self.floor(origin) + 1
        self.bytes_held -= len(self._frames[origin].pop(sequence)) + ENTRY_BYTES
        self._floors[origin] = sequence
