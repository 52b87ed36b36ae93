"""The interface of rounds: a generation at a ring, what the ring asks of its payload, and counters."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from p2psgd.base.transitions import Lifecycle, Transitions
from p2psgd.core.events import RoundMessage
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import Peer
from p2psgd.wire.ring_messages import BucketContributed, ContributionMade

# ----------------------------------------------------------------------------
# The life-cycle of a ring at one node (RINGS.md, 25): generations form, run and stop.


class RingPhase(enum.Enum):
    """The phase of the ring at this node."""

    IDLE = "idle"  # this node has been in no generation
    FORMING = "forming"  # one begins: does its replica fit, are the neighbours linked?
    RUNNING = "running"  # rounds follow each other
    STOPPED = "stopped"  # the last generation is over, for a StopReason


class StopReason(enum.StrEnum):
    """Reasons why a generation is over at this node; the values are keys of the status."""

    VIEW = "view"  # another view
    LINK = "link"  # a neighbour's link is gone
    TOLD = "told"  # another member says that it is out of the generation
    UNREADY = "unready"  # this node's replica is not complete any more
    UNLIKE = "unlike"  # it is not the one over which the generation began
    REFUSED = "refused"  # a contribution cannot be
    LEAVING = "leaving"  # this node said GOODBYE
    LATER = "later"  # a later generation
    STUCK = "stuck"  # a frame was lost
    LAST = "last"  # the last round that can be numbered


_BEGINS: Final = "the head begins a generation, or the left neighbour passes it on"
RING_PHASES: Final = Transitions(
    "ring",
    RingPhase.IDLE,
    {
        RingPhase.IDLE: {RingPhase.FORMING: _BEGINS},
        RingPhase.FORMING: {
            RingPhase.RUNNING: "both neighbours are linked, and the replica is that of the head",
            RingPhase.STOPPED: "link, unready, unlike, told",
        },
        RingPhase.RUNNING: {RingPhase.STOPPED: "any StopReason"},
        RingPhase.STOPPED: {RingPhase.FORMING: _BEGINS},
    },
)


IN_STEP: Final = (RingPhase.FORMING, RingPhase.RUNNING)  # what the replica holds changes by rounds alone


class RingLife(Lifecycle[RingPhase]):
    """The phase of the ring at this node; IDLE for ever where there is none."""

    def __init__(self) -> None:
        super().__init__(RING_PHASES)


# ----------------------------------------------------------------------------
# How often the ring of a replica did what; for people, and for tests that must have seen it.


@dataclass(slots=True)
class RingCounters:
    """Counts since this incarnation of the node began; every one only grows."""

    rounds: int = 0  # completed with this node
    generations: int = 0  # that it took part in
    stops: dict[StopReason, int] = field(default_factory=lambda: dict.fromkeys(StopReason, 0))


# ----------------------------------------------------------------------------
# One generation to run a view's ring: who is in it, and where this node stands.


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of the ring: `number` within `view`, from 1; `order`: the members' incarnations around the
    ring; `place`: this node's in it.
    """

    view: int
    number: int
    order: tuple[Origin, ...]
    place: int

    @property
    def left(self) -> Origin:
        """The member from which everything comes."""
        return self.order[self.place - 1]

    @property
    def right(self) -> Origin:
        """The member to which everything goes."""
        return self.order[(self.place + 1) % len(self.order)]


# ----------------------------------------------------------------------------
# What the ring asks of its payload: one round after the other, within a generation and over generations.


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
    """Sparse or dense rounds. They change the replica when a round is complete, as a whole, and then call
    `on_complete`, which they were made with.
    """

    request_stop: str  # why the generation could not go on and has stopped here; empty if it can

    @property
    def done(self) -> int:
        """The last completed round."""

    @property
    def contributed(self) -> bool:
        """Return whether this node's contribution to the round after `done` is given whole, or an empty
        one.
        """

    @property
    def missing(self) -> list[Origin]:
        """Return the members of the generation whose contribution to the round under way is not known to be
        given.
        """

    def fits(self, first: int) -> bool:
        """Return whether round `first` may be the next here: this node has not completed it, and does not
        lack the sums of the one before if it gave to that. The node that began it may know an old state of
        this node.
        """

    def begin(self, generation: Generation, first: int, now: float) -> None:
        """Run rounds from `first` on, with the shares there are: the replica is the same at all members."""

    def stop(self) -> None:
        """End the generation. Contributions of others are dropped, the own one stays for the next."""

    def activate(self, active: bool, now: float) -> None:
        """Note whether this node has a trainer that gives shares; without, it gives empty ones when it sees
        another's.
        """

    def share(self, event: ContributionMade | BucketContributed, now: float) -> None:
        """Take this node's contribution, or a bucket of it; kept until a round completes with it."""

    def on_message(self, peer: Peer, message: RoundMessage, now: float) -> None:
        """Take in a frame of a peer: of this generation, from the left neighbour, or else dropped unread;
        PeerError for what no honest peer says.
        """

    def drained(self, peer: Peer, now: float) -> None:
        """Go on sending on a link that has credit again."""

    def tick(self, now: float) -> None:
        """Do what is due while a generation runs."""

    def give_result(self, peer: Peer, now: float) -> None:
        """Give the last result, while idle, to a peer that lacks round `done` and only that. Said again as
        long as it is so.
        """


OnComplete = Callable[[Completed, float], None]
