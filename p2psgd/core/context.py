"""The parts of a replica: what they are, how they are put together, and what they count."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2psgd.core.acks import Acknowledgements
from p2psgd.core.frontier import Origin, name_node
from p2psgd.core.membership import Membership
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Outbound, Peer
from p2psgd.core.readiness import Joining
from p2psgd.core.retention import STALL, Budget
from p2psgd.core.ring.contribution import Share
from p2psgd.core.ring.rounds import RING_PHASES, RingPhase
from p2psgd.core.scrub import Sweeping
from p2psgd.core.send import Feeder, Repair
from p2psgd.core.state import State
from p2psgd.core.timing import Timing
from p2psgd.core.view import Votes
from p2psgd.transitions import Lifecycle
from p2psgd.wire.mode import parse_mode

# ----------------------------------------------------------------------------
# How much went through a replica since this life began.


@dataclass(slots=True)
class Tally:
    """Counts that grow all the time."""

    applied: int = 0  # peers' updates
    bytes_applied: int = 0  # of frames, own and peers'
    duplicates: int = 0
    indices_sent: int = 0
    own_bytes: int = 0  # of frames of own updates
    acknowledged: int = 0  # own updates that at least one peer has acknowledged

    def count_own(self, indices: int, frame_bytes: int) -> None:
        """One more own update was applied."""
        self.indices_sent += indices
        self.own_bytes += frame_bytes


# ----------------------------------------------------------------------------
# How often a replica met what should be rare; for people, and for tests that must have seen it.


@dataclass(slots=True)
class Counters:
    """Since this life of the node began; every one only grows."""

    snapshots_given: int = 0
    snapshots_taken: int = 0
    evictions_seen: int = 0  # members, this node among them, that a view left out against their will
    reapplied: int = 0  # own updates that a snapshot lacked and that were applied to it again
    lost_updates: int = 0  # known to have been made, and held by nobody any more
    scrubs: int = 0  # digests recomputed from the coordinates as they lie in memory
    quarantines: int = 0  # scrubs that found another digest than the one kept
    mendings: int = 0  # of those, how many this node mended from its checkpoint and its log
    held_back: int = 0  # peers' updates not taken for lack of room in the log, and asked for again later
    lost_durability: int = 0  # updates that left the log before every member had them on disk


# ----------------------------------------------------------------------------
# What one replica is made of, for the classes that work on it together.


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
    node: Node
    budget: Budget
    sweeping: Sweeping
    out: Outbound
    feeder: Feeder
    repair: Repair
    saved: dict[Origin, int] = field(default_factory=dict)  # what is in this node's latest checkpoint
    counters: Counters = field(default_factory=Counters)
    tally: Tally = field(default_factory=Tally)
    ring_life: Lifecycle[RingPhase] = field(default_factory=lambda: Lifecycle(RING_PHASES))
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
        return self.node.ready

    @property
    def in_step(self) -> bool:
        """An attempt of the ring runs: what the replica holds changes by rounds alone."""
        return self.ring_life.state in (RingPhase.FORMING, RingPhase.RUNNING)

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


# ----------------------------------------------------------------------------
# Makes the parts of a replica, each with those that it works on.


def assemble(
    state: State, *, timing: Timing, founders: int, votes: Votes, credit_bytes: int, now: float
) -> Parts:
    """Those of a replica with this content that begins its life now."""
    me, out, names = state.me, Outbound(credit_bytes), dict[int, str]()
    joining = Joining(me, timing, now)
    node = Node(joining)
    return Parts(
        me=me,
        timing=timing,
        state=state,
        peers={},
        names=names,
        acks=Acknowledgements(me),
        membership=Membership(
            me,
            founders=founders,
            two_nodes=state.spec.two_nodes,
            timing=timing,
            votes=votes,
            now=now,
            names=names,
        ),
        joining=joining,
        node=node,
        budget=Budget(state),
        sweeping=Sweeping(state, timing, now),
        out=out,
        feeder=Feeder(state, out, node, unasked=not parse_mode(state.spec.mode).ring),
        repair=Repair(patience_s=timing.patience_s),
    )
