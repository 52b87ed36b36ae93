"""Regulation: a node's trainer makes no more than the network and the peers take, and nothing before the node
is ready.
"""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.replica import Replica
from p2psgd.ipc.control_server import ControlServer
from p2psgd.ops.event_log import EventLog
from p2psgd.ops.link_speeds import LinkSpeeds
from p2psgd.ops.replication import SlowLink, StallFigures
from p2psgd.ops.stall import Stall
from p2psgd.wire.mode import parse_mode


class Regulation:
    """Of one node. `congested`: the trainer waits for peers that are all far behind; `draining`: it has
    ended, and all that it made is taken.
    """

    def __init__(
        self, replica: Replica, control: ControlServer, events: EventLog, *, now: Callable[[], float]
    ) -> None:
        """`now`: the clock that the replica goes by."""
        self.congested = False
        self.draining = False
        self._replica = replica
        self._control = control
        self._now = now
        self._stall = Stall(events)
        self._speeds = LinkSpeeds(patience_s=replica.timing.patience_s)
        self._told_ready = False
        self._ring = parse_mode(replica.spec.mode).ring

    @property
    def held_up(self) -> bool:
        """The trainer must wait for others."""
        return not self._replica.ready or self._replica.stalled

    def regulate(self) -> None:
        """Let the trainer go on, or hold it up."""
        self.congested = not self.draining and self._replica.congested(self._now())
        waits = not self.draining and self.held_up
        # in a ring the trainer gives one share at a time, and waits until the round is complete
        self._control.pause_outbox(paused=not self._ring and (self.congested or waits))
        self._stall.update(self._replica.waiting_for() if waits else "", self._now())
        if not (self._replica.ready and self._told_ready):
            self._told_ready = self._replica.ready
            self._control.readiness_changed()

    def look_at_links(self) -> None:
        """Measure what each peer takes, against what all origins make."""
        peers = [peer for peer in self._replica.peers.values() if peer.ready and peer.status]
        self._speeds.look(
            self._now(),
            applied=sum(row.sequence for row in self._replica.frontier.rows()),
            applied_bytes=self._replica.parts.tally.bytes_applied,
            acknowledged={
                peer.origin.node: sum(row.sequence for row in (peer.status or {}).values()) for peer in peers
            },
        )

    def replica_replaced(self) -> None:
        """By a snapshot: what came with it was not made just now."""
        self._speeds.clear()

    def stall(self, now: float) -> StallFigures | None:
        """Why the trainer waits, if it does."""
        return self._stall.figures(now)

    def slow_links(self) -> list[SlowLink]:
        """Peers that take less than is made."""
        return self._speeds.slow(self._replica.names)
