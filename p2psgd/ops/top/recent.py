"""What became of one node's figures of late: rates from the differences of statuses, the loss over time.

Pure: whoever asks the daemon gives the time. Starts anew when another daemon answers, whose counters do too.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from p2psgd.ops import numerals
from p2psgd.ops.figures import Status, number, section, whole

WINDOW_S: Final = 5.0  # rates are means over so long
SAMPLES_MAX: Final = 64
LOSSES_MAX: Final = 600
_COUNTS: Final = re.compile(r"(?<![\w-])\d[\d,.]*")  # that change while the wait goes on; not those of names
_TIME: Final = re.compile(r"\d (s|min|h|d)\b")


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted in one status; a peer or a node by its id, a peer without one by its address."""

    mini_batches: int
    sent: int  # bytes
    received: int
    round: int
    peers: Mapping[str, tuple[int, int]]  # bytes sent and received
    updates: Mapping[str, int]  # by origin, of all its lives


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second; None, or nothing of a peer, while there is nothing to compare with."""

    steps: float | None = None
    sent: float | None = None
    received: float | None = None
    rounds: float | None = None
    peers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    updates: Mapping[str, float] = field(default_factory=dict)


class Recent:
    """The last few seconds of one daemon, and its trainer's losses."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=LOSSES_MAX)
        self._samples: deque[tuple[float, Counts]] = deque(maxlen=SAMPLES_MAX)
        self._life: tuple[object, ...] = ()
        self._waits = ""
        self._waits_since = 0.0

    def add(self, status: Status, now: float) -> None:
        """A status that came at `now`, seconds, monotonic."""
        life = (status.get("id"), status.get("incarnation"), status.get("pid"))
        if life != self._life:
            self._life = life
            self._samples.clear()
            self.losses.clear()
            self._waits = ""
        self._samples.append((now, _count(status)))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        loss = number(section(status, "trainer"), "loss")
        if loss is not None:
            self.losses.append(loss)

    def waiting_for(self, words: str, now: float) -> str:
        """`words`, and, if they do not say it, for how long the node was seen to wait for that."""
        kind = _COUNTS.sub("", words)
        if kind != self._waits:
            self._waits, self._waits_since = kind, now
        seen_s = now - self._waits_since
        silent = not words or seen_s < 1 or _TIME.search(words)
        return words if silent else f"{words} (for {numerals.duration(seen_s)} or longer)"

    def rates(self) -> Rates:
        """Means over the last seconds."""
        if len(self._samples) < 2:
            return Rates()
        (began, before), (ended, after) = self._samples[0], self._samples[-1]
        span_s = max(ended - began, 1e-3)
        return Rates(
            steps=(after.mini_batches - before.mini_batches) / span_s,
            sent=(after.sent - before.sent) / span_s,
            received=(after.received - before.received) / span_s,
            rounds=(after.round - before.round) / span_s,
            peers={
                key: ((sent - before.peers[key][0]) / span_s, (received - before.peers[key][1]) / span_s)
                for key, (sent, received) in after.peers.items()
                if key in before.peers
            },
            updates={
                key: (count - before.updates[key]) / span_s
                for key, count in after.updates.items()
                if key in before.updates
            },
        )


def _count(status: Status) -> Counts:
    traffic, updates = section(status, "bytes"), defaultdict[str, int](int)
    for row in status.get("frontier") or ():
        updates[str(row.get("id"))] += whole(row, "sequence")
    return Counts(
        mini_batches=whole(section(status, "trainer"), "mini_batches"),
        sent=whole(traffic, "sent"),
        received=whole(traffic, "received"),
        round=whole(section(status, "ring"), "round"),
        peers={
            str(peer.get("id") or peer.get("address")): (
                whole(peer, "bytes_sent"),
                whole(peer, "bytes_received"),
            )
            for peer in status.get("peers") or ()
        },
        updates=updates,
    )
