"""What the ring asks of its payload: one round after the other, within an attempt and over attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from p2psgd.core.events import (
    BucketShared,
    RoundEvent,
    RoundShared,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.core.ring.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Completed:
    """A round that is complete here: `contributors` nodes had a share in it, this node's `own` among them or
    not; `sums`: which half of the dense memory has its sums.
    """

    round: int
    contributors: int
    own: bool
    sums: int = 0


class Rounds(Protocol):
    """Sparse or dense. Changes the replica when a round is complete, as a whole, and then calls
    `on_complete`, which it was made with.
    """

    wish_to_stop: str  # why the attempt could not go on and has stopped here; empty if it can

    @property
    def done(self) -> int:
        """The last completed round."""

    @property
    def contributed(self) -> bool:
        """This node's share of the round after `done` is given whole."""

    @property
    def missing(self) -> list[Origin]:
        """Members of the attempt whose share of the round under way is not known to be given."""

    def fits(self, first: int) -> bool:
        """Round `first` may be the next here: this node has not completed it, and does not lack the sums of
        the one before if it gave to that. Whoever began may have heard too long ago where this node stands.
        """

    def begin(self, attempt: Attempt, first: int, now: float) -> None:
        """The replica is the same at all members: run rounds from `first` on, with the shares there are."""

    def stop(self) -> None:
        """The attempt is over. Shares of others are dropped, the own one stays for the next."""

    def activate(self, active: bool, now: float) -> None:
        """Whether this node has a trainer that gives shares; without, it gives empty ones when it sees
        another's.
        """

    def share(self, event: RoundShared | BucketShared, now: float) -> None:
        """This node's trainer gives its share, or a bucket of it; kept until a round completes with it."""

    def hear(self, peer: Peer, event: RoundEvent, now: float) -> None:
        """A frame of a peer: of this attempt, from the left neighbour, or else dropped unread; PeerError for
        what no honest peer says.
        """

    def drained(self, peer: Peer, now: float) -> None:
        """There is credit again on this link."""

    def pass_time(self, now: float) -> None:
        """While an attempt runs: do what is due."""

    def give_result(self, peer: Peer, now: float) -> None:
        """While idle: this peer lacks round `done` and only that. Said again as long as it is so."""


OnComplete = Callable[[Completed, float], None]
