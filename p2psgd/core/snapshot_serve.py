"""The donor's side of a snapshot: one at a time, copied in slices, sent as the link takes it.

What is sent is one consistent state, that of the moment when the copy was done: coordinates, frontier, and
the frames of the log up to it that not every other member has acknowledged. Without those frames two crashes
could leave two replicas that each hold something the other can never get.

Nothing is pinned for it, and no frame is taken out of the log before the link takes it. Of each origin the
newest comes first, so that what has come is whole at any moment; a frame that has left the log meanwhile
all members have, and those before it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Drop, LogEvent
from p2psgd.core.frontier import Origin
from p2psgd.core.metrics import Counters
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Outbound, Peer
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import LogSender
from p2psgd.core.state import State
from p2psgd.core.update_log import UpdateLog
from p2psgd.wire.frames import PREFIX, FrameType, pack_frame
from p2psgd.wire.messages import FrontierRow, SnapshotEnd, SnapshotMeta, pack_frontier, pack_message

# ----------------------------------------------------------------------------
# The frames of one snapshot, on their way to one joiner.


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
        log: UpdateLog,
        acknowledged: Callable[[Origin], int],
        give_back: Callable[[NDArray[np.int32]], None],
        now: float,
    ) -> None:
        """`acknowledged`: up to where all other members have an origin's updates."""
        self.frames_sent = 0
        self.bytes_total = 4 * len(coordinates) + log.pinned_bytes(acknowledged)  # about
        self.bytes_sent = 0
        self.began = self.moved = now  # `moved`: when the link last took one
        self._coordinates: NDArray[np.int32] | None = coordinates
        self._give_back = give_back
        self._log = log
        self._acknowledged = acknowledged
        self._frames = self._produce(coordinates, rows, digest)

    def _produce(
        self, coordinates: NDArray[np.int32], rows: list[FrontierRow], digest: int
    ) -> Iterator[bytes]:
        yield pack_message(SnapshotMeta(frontier=pack_frontier(rows), digest=digest))
        weights = np.ascontiguousarray(coordinates, dtype="<i4").data.cast("B")
        for start in range(0, len(weights), CHUNK_BYTES):
            yield pack_frame(FrameType.SNAPSHOT_CHUNK, bytes(weights[start : start + CHUNK_BYTES]))
        self.close()
        count = 0
        for frame in self._tail(rows):
            count += 1
            yield pack_frame(FrameType.SNAPSHOT_TAIL, frame[PREFIX.size :])
        yield pack_message(SnapshotEnd(words="", tail=count))

    def _tail(self, rows: list[FrontierRow]) -> Iterator[bytes]:
        for row in rows:
            origin = Origin(row.node, row.incarnation)
            if self._log.floor(origin) >= row.sequence:
                continue
            for sequence in range(row.sequence, self._acknowledged(origin), -1):
                frame = self._log.frame(origin, sequence)
                if frame is None:
                    break
                yield frame

    def take(self, now: float) -> bytes | None:
        """The next frame, or None after the last."""
        frame = next(self._frames, None)
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


# ----------------------------------------------------------------------------
# To whom this node serves a snapshot, one at a time.


BUSY: Final = "busy with another copy: ask again"
INCOMPLETE: Final = "this node's own replica is not complete"
NO_MEMBER: Final = "snapshots are for members, and the view known here does not hold you: ask again"


class SnapshotServer:
    """Serves one snapshot at a time (VIEWS.md, 21)."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        *,
        node: Node,
        scanner: SliceScanner,
        log_sender: LogSender,
        counters: Counters,
        out: Outbound,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._node = node
        self._scanner = scanner
        self._log_sender = log_sender
        self._counters = counters
        self._out = out
        self._asker: Origin | None = None  # for whom a copy is under way

    def give(self, peer: Peer, now: float) -> None:
        """A peer asks for a snapshot: begin to copy, or say why not."""
        if peer.feed is not None or self._asker == peer.origin:
            return  # it is on its way
        words = ""
        if self._node.quarantined or self._cluster.membership.admitted_in is None:
            words = INCOMPLETE
        elif peer.origin not in self._cluster.membership.view:
            words = NO_MEMBER
        elif self._scanner.copying or any(other.feed is not None for other in self._cluster.peers.values()):
            words = BUSY
        if words:
            self._out.say(peer, SnapshotEnd(words=words, tail=0))
            return
        self._asker = peer.origin
        self._scanner.begin_copy(lambda coordinates, rows: self._feed(coordinates, rows, now))

    def withdraw(self) -> None:
        """The weights here are wrong: nobody is given more of them."""
        self._scanner.abort()
        for peer in self._cluster.peers.values():
            if peer.feed is not None or peer.origin == self._asker:
                self._out.say(peer, SnapshotEnd(words=INCOMPLETE, tail=0))
                if peer.feed is not None:
                    peer.feed.close()
                    peer.end_feed()
        self._asker = None

    def _feed(self, coordinates: NDArray[np.int32], rows: list[FrontierRow], now: float) -> None:
        asker, self._asker = self._asker, None
        peer = None if asker is None else self._cluster.peers.get(asker)
        if peer is None:
            self._scanner.take_back(coordinates)
            return
        feed = SnapshotFeed(
            coordinates,
            rows,
            self._state.digest_of(rows),
            log=self._state.log,
            acknowledged=partial(self._acknowledged_without, peer.origin),
            give_back=self._scanner.take_back,
            now=now,
        )
        peer.begin_feed(feed)
        self._counters.snapshots_given += 1
        size = feed.bytes_total / 1e6
        words = f"giving {peer.name} a snapshot of {size:.1f} MB"
        self._out.order(LogEvent("snapshot given", words, peer.origin.node))
        self._log_sender.push(peer, now)

    def _acknowledged_without(self, asker: Origin, origin: Origin) -> int:
        """Up to where all members but this node and the asker have an origin's updates."""
        members = self._cluster.membership.view.members
        return self._cluster.acks.stable(origin, (member for member in members if member != asker))

    @property
    def serving(self) -> bool:
        """Somebody will soon have all that this node has."""
        peers = self._cluster.peers
        return self._asker in peers or any(peer.feed is not None for peer in peers.values())

    def pass_time(self, now: float) -> None:
        """Give up on peers that take nothing of what they asked for."""
        for peer in self._cluster.peers.values():
            if peer.feed is not None and now - peer.feed.moved > self._cluster.timing.silence_s:
                words = f"{peer.name} has taken nothing of its snapshot for {now - peer.feed.moved:.0f} s"
                self._out.order(Drop(peer.origin, "slow", words))

    def replaced(self) -> None:
        """The weights were replaced: the copy under way is of no use."""
        self._scanner.abort()
        asker, self._asker = self._cluster.peers.get(self._asker) if self._asker else None, None
        if asker is not None:
            self._out.say(asker, SnapshotEnd(words=BUSY, tail=0))

    def forget(self, peer: Peer) -> None:
        """The link to `peer` is gone."""
        if peer.feed is not None:
            peer.feed.close()
        if self._asker == peer.origin:
            self._asker = None
