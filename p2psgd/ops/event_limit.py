"""How often the event log keeps what peers cause at will: a flood of it would push out everything else. Pure.

Links come and go as often as a peer likes, and a peer that lies can have an alarm raised each time. Of each
kind of such events some pass at once for each peer, and some for all of them; then one every few minutes. The
others are counted, and the next one of the kind that passes says how many they were.
"""

from __future__ import annotations

import collections
from typing import Final

from p2psgd.net.token_buckets import TokenBuckets

# An "alarm" is one of these only where it is about a peer, as all the others are.
OF_PEERS: Final = frozenset({"link", "lost", "refused", "snapshot given", "result given", "alarm"})
PEER_BURST: Final = 8
KIND_BURST: Final = (
    64  # as many nodes as one partition may cut off: still a third of the events kept in memory
)
INTERVAL_S: Final = 300.0  # with words of full length the six kinds fill one of the two files in eleven hours


class EventLimit:
    """Of one event log; `held_back` counts all that were not to be kept."""

    def __init__(self) -> None:
        self.held_back = 0
        self._untold: collections.Counter[str] = collections.Counter()
        self._by_peer = TokenBuckets(burst=PEER_BURST, interval_s=INTERVAL_S)
        self._by_kind = TokenBuckets(burst=KIND_BURST, interval_s=INTERVAL_S)

    def pass_on(self, kind: str, node: int | None, now: float) -> int | None:
        """None: the event is held back. Else how many of its kind were since the last one that passed."""
        if node is None or kind not in OF_PEERS:
            return 0
        if self._by_peer.take(f"{kind} {node}", now) and self._by_kind.take(kind, now):
            return self._untold.pop(kind, 0)
        self.held_back += 1
        self._untold[kind] += 1
        return None
