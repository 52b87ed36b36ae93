"""The life-cycle of a node: on its way to READY, READY, or with damaged weights that it repairs or replaces.

What a node may do follows from its state alone: only a READY node trims its log, proposes evictions and
trains, and a node whose weights are damaged sends none of them. A node that is stopping has no state of its
own: it stays what it is until its links are closed, since its last acknowledgement counts.
"""

from __future__ import annotations

import enum
from typing import Final

from p2psgd.base.transitions import Lifecycle, Transitions
from p2psgd.core.readiness import JoinProgress


class NodeState(enum.Enum):
    """States of a node."""

    JOINING = "joining"  # see Readiness for how far it has come
    READY = "ready"  # a member whose replica is complete, or alone
    REPAIRING = "repairing"  # its weights are damaged, and made anew from its checkpoint and its log
    FETCHING = "fetching"  # they are damaged, and replaced by a snapshot or given up


_DAMAGED: Final = "the scrub finds weights that were not applied"
_ADMITTED_ANEW: Final = "a view leaves it out, or admits it anew"
_REPLACED: Final = "a snapshot is installed"
NODE: Final = Transitions(
    "node",
    NodeState.JOINING,
    {
        NodeState.JOINING: {
            NodeState.READY: "its replica has all that the members had",
            NodeState.REPAIRING: _DAMAGED,
        },
        NodeState.READY: {NodeState.JOINING: _ADMITTED_ANEW, NodeState.REPAIRING: _DAMAGED},
        NodeState.REPAIRING: {
            NodeState.READY: f"the weights are rebuilt, or {_REPLACED}",
            NodeState.JOINING: f"the same, and meanwhile {_ADMITTED_ANEW}",
            NodeState.FETCHING: "checkpoint and log do not suffice",
        },
        NodeState.FETCHING: {
            NodeState.READY: _REPLACED,
            NodeState.JOINING: f"the same, and meanwhile {_ADMITTED_ANEW}",
        },
    },
)


DAMAGED: Final = (NodeState.REPAIRING, NodeState.FETCHING)  # the weights are not what was applied


class Node(Lifecycle[NodeState]):
    """The state of this node, and since when its weights are known to be damaged."""

    def __init__(self, joining: JoinProgress) -> None:
        super().__init__(NODE)
        self.quarantined_at = 0.0  # when damage was found, or the repair given up
        self.checkpoint_found = False  # since damage was found: a whole one is on disk
        self._joining = joining

    @property
    def ready(self) -> bool:
        """Return whether this node is a member whose replica is complete."""
        return self.state is NodeState.READY

    @property
    def quarantined(self) -> bool:
        """Return whether the weights in memory are not what was applied: none of them may be sent."""
        return self.state in DAMAGED

    @property
    def repairing(self) -> bool:
        """Return whether this node tries to make its weights anew by itself."""
        return self.state is NodeState.REPAIRING

    def follow_readiness(self) -> None:
        """Become READY, or JOINING again, as readiness says; not while the weights are damaged."""
        if not self.quarantined and self._joining.ready != self.ready:
            self.move(NodeState.READY if self._joining.ready else NodeState.JOINING)

    def quarantine(self, now: float) -> None:
        """Note that the weights are damaged, and begin the repair."""
        self.move(NodeState.REPAIRING)
        self.quarantined_at, self.checkpoint_found = now, False

    def find_checkpoint(self) -> None:
        """Note that a whole checkpoint is on disk: started again, the node goes on from it."""
        self.checkpoint_found = True

    def give_up_repair(self, now: float) -> None:
        """Note that this node cannot make its weights anew: it needs a snapshot."""
        self.move(NodeState.FETCHING)
        self.quarantined_at = now

    def release(self) -> None:
        """Note that the weights are right, made anew or replaced; nothing changes if they were before."""
        if self.quarantined:
            self.move(NodeState.READY if self._joining.ready else NodeState.JOINING)
