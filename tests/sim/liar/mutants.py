"""Bugs that a liar must find: what an honest node takes from one that has no say, or from anybody."""

from __future__ import annotations

from typing import Final

from p2psgd.core import acks, membership, paxos, receive, snapshot_fetch
from tests.sim.mutants import Edit, Mutant

LIAR_MUTANTS: Final[dict[str, Mutant]] = {
    "strangers-votes-counted": (
        Edit(
            paxos,
            "Consensus.on_message",
            "if view.number and peer.node not in view.incarnations:",
            "if False:",
        ),
    ),
    "strangers-vouch-for-others": (
        Edit(
            receive,
            "Receiver.status",
            "confirming if believed else {}",
            "confirming",
        ),
    ),
    "hearsay-over-own-word": (Edit(acks, "Acknowledgements._floors", "if not known.speaks:", "if True:"),),
    "claimed-views-never-named": (
        Edit(
            membership,
            "Membership.take_unbacked",
            "if waited_s > timing.failure_timeout_s + (",
            "if 0 > 1 + (",
        ),
    ),
    "other-members-of-the-known-view": (
        Edit(membership, "Membership._hear_news", "and view != self.view:", "and False:"),
    ),
    "forbidden-nodes-freed": (
        Edit(paxos, "Consensus.check_successor", "and not known.forbidden <= view.forbidden", "and False"),
        Edit(
            paxos,
            "Consensus.on_message",
            "if view.number and peer.node not in view.incarnations:",
            "if False:",
        ),
    ),
    "gives-up-for-one-member": (
        Edit(snapshot_fetch, "FetchProgress.choose", "self.least_loss = 0  #", "pass  #"),
    ),
    "origin-of-the-ring-taken": (
        Edit(receive, "Receiver._parse", "if header.node == RING.node:", "if False:"),
    ),
    "own-sequence-unchecked": (
        Edit(
            receive,
            "Receiver._check_rows",
            "if own is not None and not",
            "if own is not None and False and not",
        ),
    ),
}
