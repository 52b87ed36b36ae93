"""STATUS: its contents and when it is sent: the frontier, what is trimmed and acknowledged, and which members
are heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from p2psgd.core.cluster import Cluster
from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer, StatusTables
from p2psgd.core.readiness import lacks_trimmed
from p2psgd.core.send import Outbound
from p2psgd.core.state import State
from p2psgd.core.view import View
from p2psgd.wire.messages import (
    ConfirmedRow,
    FrontierRow,
    Status,
    pack_confirmed,
    pack_frontier,
    pack_loss,
    pack_message,
    pack_nodes,
)


class LeastTold:
    """Finds up to where each origin's updates are applied by all of some peers; it looks anew only where one
    of their tables is another one, or the frontier has moved.
    """

    def __init__(self) -> None:
        self._version = -1
        self._tables: list[Mapping[Origin, FrontierRow]] = []
        self._least: dict[Origin, int] = {}

    def of(self, frontier: Frontier, tables: list[Mapping[Origin, FrontierRow]]) -> Mapping[Origin, int]:
        """Return the least sequence for each origin of `frontier`, of this node and of peers with these
        `tables`.
        """
        if frontier.version != self._version or [*map(id, tables)] != [*map(id, self._tables)]:
            self._version, self._tables = frontier.version, tables  # which keeps their ids
            self._least = {origin: sequence for origin, (sequence, _, _) in frontier.items()}
            for table in tables:
                for origin, least in self._least.items():
                    row = table.get(origin)
                    if row is None or row.sequence < least:
                        self._least[origin] = 0 if row is None else row.sequence
        return self._least


def tables_of(
    state: State,
    peers: Mapping[Origin, Peer],
    view: View,
    saved: Mapping[Origin, int],
    *,
    heard_since: float,
    least_told: LeastTold,
) -> StatusTables:
    """Return the tables of a STATUS. They do not vouch for peers that were silent since `heard_since`."""
    heard = [peer for peer in peers.values() if peer.status is not None and peer.last_seen >= heard_since]
    told, confirmed = [], {}
    for peer in sorted(heard, key=lambda peer: peer.origin):  # of a node that is there twice its newest life
        vouched = peer.origin in view and not lacks_trimmed(peer, state.frontier)
        confirmed[peer.origin.node] = ConfirmedRow(*peer.origin, peer.view if vouched else 0)
        if vouched and peer.status is not None:
            told.append(peer.status)
    least = least_told.of(state.frontier, told)
    rows = {}
    for origin, (sequence, digest, steps) in state.frontier.items():
        trimmed_to, durable = state.log.trimmed_to(origin), min(sequence, saved.get(origin, 0))
        rows[origin] = FrontierRow(*origin, sequence, digest, trimmed_to, durable, least[origin], steps)
    return StatusTables(rows, confirmed)


def pack_status(
    tables: StatusTables,
    view: View,
    *,
    evict_requests: Iterable[int],
    ready: bool,
    loss: float | None,
    whole: bool = True,
    steps: int = 0,
    ring: bytes = b"",
) -> bytes:
    """Return the STATUS frame."""
    return pack_message(
        Status(
            frontier=pack_frontier(list(tables.rows.values())),
            view=view.number,
            cluster_id=view.cluster_id,
            ready=ready,
            confirmed=pack_confirmed(list(tables.confirmed.values())),
            whole=whole,
            evict_requests=pack_nodes(evict_requests),
            loss=pack_loss(loss),
            steps=steps,
            ring=ring,
        )
    )


class StatusSender:
    """Sends STATUS; each peer gets the rows that it was not sent before on this link."""

    def __init__(
        self, cluster: Cluster, state: State, *, node: Node, saved: Mapping[Origin, int], out: Outbound
    ) -> None:
        """Use `saved`, the frontier of this node's latest checkpoint."""
        self.loss: float | None = None  # of this node's trainer
        self.standing: Callable[[], bytes] = bytes  # in the ring, packed; empty without one
        self.covered_steps: Callable[[], int] | None = None  # of the trainer, in mode `owners`
        self.resigned = False  # this node leaves: peers give it nothing more, as if it were not READY
        self._cluster = cluster
        self._state = state
        self._node = node
        self._saved = saved
        self._out = out
        self._said: tuple[object, ...] | None = None  # when the tables were last made,
        self._tables = StatusTables({}, {})  # and the tables,
        self._least_told = LeastTold()
        self._frames: dict[StatusTables | None, bytes] = {}  # and frames, by what a peer was sent before

    def send(self, peer: Peer, now: float, *, always: bool = False) -> None:
        """Send a STATUS if there is credit, or `always`; else it goes out before all else once there is."""
        if peer.credit <= 0 and not always:
            peer.status_due = min(peer.status_due, now)
            return
        self._out.send(peer, self._pack(peer.told, now))
        peer.told = self._tables
        peer.status_due = now + self._cluster.timing.status_s
        peer.applied_bytes = peer.applied_updates = 0

    def send_to_all(self, now: float, *, always: bool = False) -> None:
        """Send a STATUS to every linked peer."""
        for peer in self._cluster.peers.values():
            self.send(peer, now, always=always)

    def _pack(self, before: StatusTables | None, now: float) -> bytes:
        """Return the frame for a peer that was sent `before`; None: it is to have all."""
        ring, ready = self.standing(), self._node.ready and not self.resigned
        said = self._state.frontier.version, self._cluster.membership.view.number, ready, ring, now
        if said != self._said:
            self._said = said
            self._frames.clear()
            self._tables = tables_of(
                self._state,
                self._cluster.peers,
                self._cluster.membership.view,
                self._saved,
                heard_since=now - self._cluster.timing.failure_timeout_s,
                least_told=self._least_told,
            )
        frame = self._frames.get(before)
        if frame is None:
            news = None if before is None else self._tables.since(before)
            if news is None and before is not None:
                return self._pack(None, now)
            frame = self._frames[before] = pack_status(
                self._tables if news is None else news,
                self._cluster.membership.view,
                evict_requests=self._cluster.membership.evict_requests if self._node.ready else (),
                ready=ready,
                loss=self.loss,
                whole=news is None,
                steps=self.covered_steps() if self.covered_steps is not None else 0,
                ring=ring,
            )
        return frame
