"""Whether this node makes more than even its fastest peer takes; then its trainer should wait.

Making more would only make it staler, and stale enough updates diverge. One slow peer is not enough, and a
peer that has yet to be told the past, or has stopped acknowledging, does not count. Counted are mini-batches,
since one may make many updates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer

OWN_LAG_MAX: Final = (
    512  # own mini-batches that even the fastest peer has not acknowledged; then the trainer waits
)


class Congestion:
    """Remembers the last OWN_LAG_MAX own mini-batches."""

    def __init__(self, me: Origin) -> None:
        self._me = me
        # (mini-batch, its last update so far)
        self._made: deque[tuple[int, int]] = deque(maxlen=OWN_LAG_MAX + 1)

    def made(self, mini_batch: int, sequence: int) -> None:
        """Own update `sequence` was made by this mini-batch."""
        if self._made and self._made[-1][0] == mini_batch:
            self._made.pop()
        self._made.append((mini_batch, sequence))

    def hear(self, peer: Peer) -> None:
        """A peer has told what it has applied."""
        peer.caught_up |= not self._is_far_behind(peer)

    def is_general(self, peers: Iterable[Peer], since: float) -> bool:
        """Every peer that follows us, having acknowledged more after `since`, is far behind."""
        following = [peer for peer in peers if peer.caught_up and peer.acknowledged > since]
        return bool(following) and all(map(self._is_far_behind, following))

    def _is_far_behind(self, peer: Peer) -> bool:
        """It lacks updates of more than OWN_LAG_MAX of our mini-batches."""
        return len(self._made) == self._made.maxlen and peer.has(self._me) < self._made[0][1]
