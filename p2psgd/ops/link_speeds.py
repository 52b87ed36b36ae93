"""Does every peer take as much as all origins make? If not, no log lasts for ever, and a person must know.

Both are measured over the last three patiences: what this node applied, own updates and peers', is what is
made; by how much the sum of a peer's acknowledgements grew is what it takes. A peer that is merely behind and
catches up takes more than is made, and is not slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from p2psgd.core.node_id import name_node
from p2psgd.ops.replication import SlowLink

WINDOW_PATIENCES: Final = 3
LOOKS_PER_PATIENCE: Final = 5  # as often as peers acknowledge
SLOW_BELOW: Final = 0.9  # of what is needed; acknowledgements come in steps of a fifth of a patience


class _Look(NamedTuple):
    now: float
    applied: int  # updates of all origins
    applied_bytes: int
    acknowledged: Mapping[int, int]  # updates of all origins, by node


class LinkSpeeds:
    """Looks taken several times a patience; at most 16 are kept."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._looks: deque[_Look] = deque(maxlen=WINDOW_PATIENCES * LOOKS_PER_PATIENCE + 1)

    def look(self, now: float, *, applied: int, applied_bytes: int, acknowledged: Mapping[int, int]) -> None:
        """Take a look if one is due.

        `applied`: the sum of the own frontier's sequences, `applied_bytes` that of the frames applied since
        the start; `acknowledged`: the sum of each linked peer's frontier, by node id.
        """
        if not self._looks or now - self._looks[-1].now >= self._patience_s / LOOKS_PER_PATIENCE:
            self._looks.append(_Look(now, applied, applied_bytes, dict(acknowledged)))

    def clear(self) -> None:
        """The own replica was replaced by a snapshot: what came with it was not made just now."""
        self._looks.clear()

    def slow(self, names: Mapping[int, str]) -> list[SlowLink]:
        """Peers that were linked all the time, lack more than is made in a patience, and take less than is
        made.
        """
        if len(self._looks) < (self._looks.maxlen or 0):
            return []
        first, last = self._looks[0], self._looks[-1]
        seconds, made = last.now - first.now, last.applied - first.applied
        if made <= 0:
            return []
        bytes_each = (last.applied_bytes - first.applied_bytes) / made
        slow = []
        for node, before in first.acknowledged.items():
            after = last.acknowledged.get(node)
            if after is None or any(node not in look.acknowledged for look in self._looks):
                continue
            behind = last.applied - after > made / WINDOW_PATIENCES
            if behind and after - before < SLOW_BELOW * made:
                needed, available = made * bytes_each / seconds, (after - before) * bytes_each / seconds
                slow.append(SlowLink(node, name_node(node, names), needed, available))
        return slow
