"""The members of an evaluation, as this node hears them: which of them can be used, and which one leads.

Nobody is elected. Each node takes for the leader the first member of its view that it hears, so two may lead
at once, which does no harm (leader.py).
"""

from __future__ import annotations

from collections.abc import Collection

from p2psgd.core.cluster import Cluster
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import PeerState


class Members:
    """The members of the view, this node among them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def me(self) -> Origin:
        """Return this node."""
        return self._cluster.me

    def name(self, member: Origin) -> str:
        """Return the name that people know a member by."""
        return self._cluster.name_of(member)

    def is_usable(self, member: Origin, now: float) -> bool:
        """Return whether this node hears a member, which does not leave."""
        if member == self.me:
            return True
        peer = self._cluster.peers.get(member)
        return (
            peer is not None
            and now - peer.last_seen <= self._cluster.timing.failure_timeout_s / 2
            and peer.state not in (PeerState.LEAVING, PeerState.BARRED)
        )

    def usable(self, now: float) -> list[Origin]:
        """Return the members that this node hears, ascending."""
        return [each for each in self._cluster.membership.view.members if self.is_usable(each, now)]

    def leader(self, now: float) -> Origin:
        """Return the first member that this node hears; itself if it is in no view yet."""
        return next(iter(self.usable(now)), self.me)

    def linked(self, members: Collection[Origin], now: float) -> set[Origin]:
        """Return those of `members` of which each is linked with all others: sums go from each to each. One
        that is not waits for the result, which any peer gives it.
        """
        usable = [member for member in members if self.is_usable(member, now)]
        links = {member: sum(self._are_linked(member, other) for other in usable) for member in usable}
        linked: list[Origin] = []
        for member in sorted(usable, key=lambda each: (each != self.me, -links[each], each)):
            if all(self._are_linked(member, other) for other in linked):
                linked.append(member)
        return set(linked)

    def _are_linked(self, one: Origin, other: Origin) -> bool:
        """Return whether two members say that they hear each other."""
        if self.me in (one, other) or one == other:
            return True
        peers = self._cluster.peers
        return all(
            there.node in peers[here].confirmed
            and peers[here].confirmed[there.node].incarnation == there.incarnation
            for here, there in ((one, other), (other, one))
        )
