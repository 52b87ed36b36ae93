"""What one replica is made of, for the classes that work on it together."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psgd.core.acks import Acknowledgements
from p2psgd.core.budget import STALL, Budget
from p2psgd.core.counters import Counters
from p2psgd.core.feeding import Feeder
from p2psgd.core.frontier import Origin
from p2psgd.core.joining import Joining
from p2psgd.core.membership import Membership
from p2psgd.core.node_id import name_node
from p2psgd.core.outbound import Outbound
from p2psgd.core.peer import Peer
from p2psgd.core.repair import Repair
from p2psgd.core.ring.share import Share
from p2psgd.core.state import State
from p2psgd.core.sweeping import Sweeping
from p2psgd.core.tally import Tally
from p2psgd.core.timing import Timing


@dataclass(slots=True)
class Parts:
    """One of each."""

    me: Origin
    timing: Timing
    state: State
    peers: dict[Origin, Peer]  # the linked ones
    names: dict[int, str]  # of nodes, for people
    acks: Acknowledgements
    membership: Membership
    joining: Joining
    budget: Budget
    sweeping: Sweeping
    out: Outbound
    feeder: Feeder
    repair: Repair
    saved: dict[Origin, int] = field(default_factory=dict)  # what is in this node's latest checkpoint
    counters: Counters = field(default_factory=Counters)
    tally: Tally = field(default_factory=Tally)
    quarantined: bool = False  # the weights in memory are not what was applied,
    mending: bool = False  # which this node is trying to mend by itself;
    quarantined_at: float = 0.0  # since when that is known, or that it cannot
    checkpoint_found: bool = False  # since then: one is on disk, and whole
    in_step: bool = False  # an attempt of the ring runs: what the replica holds changes by rounds alone
    given: Share | None = None  # to a round that is not known to be complete
    late: dict[Origin, str] = field(default_factory=dict)  # members that hold the ring back, and how
    carriers: dict[int, Origin] = field(default_factory=dict)  # by node: who passed on its latest update
    standstill: str = ""  # why the ring has not moved for a while

    @property
    def made(self) -> int:
        """Number of own updates, with those that a round may have taken elsewhere."""
        sequence = self.state.frontier.sequence(self.me)
        return sequence if self.given is None else max(sequence, self.given.last)

    @property
    def ready(self) -> bool:
        """This node is a member whose replica is complete."""
        return self.joining.ready and not self.quarantined

    @property
    def stalled(self) -> bool:
        """The log is full of what others have not acknowledged: the trainer must wait."""
        return self.budget.fullness >= STALL

    @property
    def other_members(self) -> list[Origin]:
        """Of the view that this node knows."""
        return [member for member in self.membership.view.members if member != self.me]

    def name_of(self, origin: Origin) -> str:
        """What people call this origin's node."""
        return name_node(origin.node, self.names)
