"""What a lie has to work with: who lies to whom, what the liar has heard, and the STATUS about to go out."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from p2psgd.core.frontier import Origin
from p2psgd.core.paxos import Attempt
from p2psgd.core.view import View
from p2psgd.wire.messages import (
    ConfirmedRow,
    FrontierRow,
    Status,
    pack_confirmed,
    pack_frontier,
    pack_message,
    pack_nodes,
)


@dataclass(slots=True)
class Told:
    """A STATUS that lies may still change."""

    rows: dict[Origin, FrontierRow]
    view: int
    cluster_id: int
    ready: bool
    confirmed: dict[int, ConfirmedRow]
    evict_requests: set[int]

    def pack(self) -> bytes:
        """The frame."""
        status = Status(
            frontier=pack_frontier(list(self.rows.values())),
            view=self.view,
            cluster_id=self.cluster_id,
            ready=self.ready,
            confirmed=pack_confirmed(list(self.confirmed.values())),
            whole=True,
            evict_requests=pack_nodes(self.evict_requests),
            loss=0,
            steps=0,
            ring=b"",
        )
        return pack_message(status)


class Speaker(Protocol):
    """The liar, as its lies see it. Of a hearer they know more than a real liar could: the worst case."""

    me: Origin
    chance: Random
    coordinates: int
    initial_digest: int
    rows: dict[Origin, FrontierRow]
    view: View

    def is_outside(self, hearer: Origin) -> bool: ...
    def members_linked_to(self, hearer: Origin) -> list[Origin]: ...
    def view_of(self, hearer: Origin) -> View: ...
    def sequence_at(self, hearer: Origin, origin: Origin) -> int: ...
    def digest_at(self, hearer: Origin, origin: Origin) -> int: ...
    def attempt_of(self, hearer: Origin) -> Attempt | None: ...
    def may_disturb(self) -> bool: ...
    def make_update(self, origin: Origin, sequence: int, digest: int) -> tuple[bytes, int]: ...
    def next_updates(self, hearer: Origin, origin: Origin) -> list[bytes]: ...
