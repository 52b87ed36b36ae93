"""The donor's side of a snapshot: one at a time, copied in slices, sent as the link takes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.acks import stable_by
from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Drop, LogEvent
from p2psgd.core.frontier import Origin
from p2psgd.core.metrics import Counters
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import LogSender, Outbound
from p2psgd.core.snapshot_feed import SnapshotFeed
from p2psgd.core.state import State
from p2psgd.wire.messages import FrontierRow, SnapshotEnd
from p2psgd.wire.reject import RejectCode

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
        """Begin a copy for a peer that asks for a snapshot, or send it the reason against."""
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
            self._out.send_message(peer, SnapshotEnd(reason=words, tail=0))
            return
        self._asker = peer.origin
        self._scanner.begin_copy(lambda coordinates, rows: self._feed(coordinates, rows, now))

    def withdraw(self) -> None:
        """Stop serving, since the weights here are wrong."""
        self._scanner.abort()
        for peer in self._cluster.peers.values():
            if peer.feed is not None or peer.origin == self._asker:
                self._out.send_message(peer, SnapshotEnd(reason=INCOMPLETE, tail=0))
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
            covers=self._state.covers.pack(),
            log=self._state.log,
            acknowledged=partial(self._acknowledged_without, peer.origin),
            give_back=self._scanner.take_back,
            now=now,
        )
        peer.begin_feed(feed)
        self._counters.snapshots_given += 1
        size = feed.bytes_total / 1e6
        words = f"giving {peer.name} a snapshot of {size:.1f} MB"
        self._out.emit(LogEvent("snapshot given", words, peer.origin.node))
        self._log_sender.push(peer, now)

    def _acknowledged_without(self, asker: Origin) -> Callable[[Origin], int]:
        """Return what gives up to where all members but this node and the asker have an origin's updates."""
        members = self._cluster.membership.view.members
        floors = self._cluster.acks.floors_of(member for member in members if member != asker)
        return lambda origin: stable_by(floors, origin)

    @property
    def serving(self) -> bool:
        """Return whether another node will soon have all that this one has."""
        peers = self._cluster.peers
        return self._asker in peers or any(peer.feed is not None for peer in peers.values())

    def tick(self, now: float) -> None:
        """Drop peers that take nothing of the snapshot they asked for."""
        for peer in self._cluster.peers.values():
            if peer.feed is not None and now - peer.feed.moved > self._cluster.timing.silence_s:
                words = f"{peer.name} has taken nothing of its snapshot for {now - peer.feed.moved:.0f} s"
                self._out.emit(Drop(peer.origin, RejectCode.SLOW, words))

    def replaced(self) -> None:
        """Drop the copy under way, since the weights were replaced."""
        self._scanner.abort()
        asker, self._asker = self._cluster.peers.get(self._asker) if self._asker else None, None
        if asker is not None:
            self._out.send_message(asker, SnapshotEnd(reason=BUSY, tail=0))

    def forget(self, peer: Peer) -> None:
        """Forget what was for `peer`, whose link is gone."""
        if peer.feed is not None:
            peer.feed.close()
        if self._asker == peer.origin:
            self._asker = None
