"""Rings of daemons for tests (daemons.py): rounds complete when every daemon that takes part has given its
share, by plain numpy, and at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2psgd.ipc.segments import DenseSegments
from p2psgd.wire.ring_messages import ARRAY, CHANGES, BucketContributed, ContributionMade
from p2psgd.wire.update import UpdateHeader, pack_update
from tests.ipc.daemons import Daemon


class Ring:
    """A sparse ring of these daemons; the first round is opened by `open`."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self.daemons = list(daemons)
        self.rounds = 0
        self.held = threading.Event()  # while it is set, no round completes
        self._lock = threading.Lock()
        for daemon in daemons:
            daemon.host.on_shared = self.look

    def open(self) -> None:
        """Let all trainers give their share of the next round."""
        for daemon in self.daemons:
            self.open_for(daemon)

    def open_for(self, daemon: Daemon, *, contributors: int = 0, sums: int = 0) -> None:
        daemon.loop.call_soon_threadsafe(
            lambda: daemon.server.session.open_round(
                self.rounds + 1,
                contributors=contributors,
                sums=sums,
                adding_us=1_000_000,
                sending_us=2_000_000,
            )
        )

    def look(self) -> None:
        """Complete the round if all shares are there."""
        with self._lock:
            if not self.held.is_set() and all(map(self.is_whole, self.daemons)):
                self.rounds += 1
                self.complete()

    def is_whole(self, daemon: Daemon) -> bool:
        return any(isinstance(share, ContributionMade) for share in daemon.host.shares)

    def complete(self) -> None:
        given = [(daemon, daemon.host.shares.pop(0)) for daemon in self.daemons]
        for daemon in self.daemons:
            daemon.loop.call_soon_threadsafe(self._take, daemon, given)
            self.open_for(daemon, contributors=len(given))

    def _take(self, daemon: Daemon, given: list[tuple[Daemon, ContributionMade | BucketContributed]]) -> None:
        """All shares, in one order at all of them; a peer's are delivered."""
        for source, share in given:
            assert isinstance(share, ContributionMade)
            for update in share.updates:
                if source is daemon:
                    daemon.host.apply(update.words, update.magnitude)
                    continue
                numbers = (
                    source.host.node,
                    1,
                    self.rounds,
                    0,
                    share.steps,
                    update.magnitude,
                    len(update.words),
                )
                body = pack_update(UpdateHeader(*numbers), update.payload)
                daemon.host.peer_update(body)
                daemon.server.session.deliver(body)


class DenseRing(Ring):
    """A dense ring of them, of so many weights; `half`: its sums are rounded to float16."""

    def __init__(self, daemons: Sequence[Daemon], weights: int, *, half: bool = False) -> None:
        super().__init__(daemons)
        self.half = half
        self.weights = weights
        self.segments = [DenseSegments(weights) for _ in daemons]
        self.buckets: list[list[BucketContributed]] = []  # of each round
        for daemon, segments in zip(daemons, self.segments, strict=True):
            daemon.server.session.dense = segments

    def is_whole(self, daemon: Daemon) -> bool:
        buckets = [share for share in daemon.host.shares if isinstance(share, BucketContributed)]
        changes = sum(bucket.count for bucket in buckets if bucket.kind == CHANGES)
        return changes == self.weights or any(bucket.kind == ARRAY for bucket in buckets)

    def complete(self) -> None:
        buckets = [bucket for bucket in self.daemons[0].host.shares if isinstance(bucket, BucketContributed)]
        self.buckets.append(buckets)
        half = self.rounds % 2
        given = [each.arrays if buckets[0].kind == ARRAY else each.contributions for each in self.segments]
        total: NDArray[np.float32] = np.sum(given, 0, dtype=np.float32)
        if self.half:
            with np.errstate(over="ignore"):
                total = total.astype(np.float16).astype(np.float32)
        for daemon, segments in zip(self.daemons, self.segments, strict=True):
            daemon.host.shares.clear()
            segments.sums[half] = total
            if buckets[0].kind == CHANGES:
                weights = daemon.host.coordinates.view(np.float32)
                weights += total[: self.weights] * np.float32(1 / len(self.daemons))
            self.open_for(daemon, contributors=len(self.daemons), sums=half)
