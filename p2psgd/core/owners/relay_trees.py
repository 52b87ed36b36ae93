"""Relay trees: the way of each owner's updates to all members of the view.

An owner sends its updates to FAN_OUT members, each of these to as many others, and so on: nobody sends
more than a few copies of an update, however many members there are. The trees follow from the view alone.
Those of different owners have different inner nodes, so that all relay about equally. A relay without a link
is passed over: its children are served by the one above. Whatever goes wrong beyond that, a member that lacks
updates sees so in the STATUS of others, and asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.frontier import Origin
from p2psgd.core.owners.ranges import owner_count
from p2psgd.core.peer import Peer, PeerState
from p2psgd.core.view import NO_VIEW

FAN_OUT: Final = 4


def position_of(place: int, root: int, *, members: int, owners: int) -> int:
    """Return the position in the tree of the member at place `root` of the member at `place`, from 0."""
    if place == root:
        return 0
    spread = root * (members - owners) // owners  # so that inner nodes differ from tree to tree
    return ((place - root - 1) % members - spread) % (members - 1) + 1


def place_at(position: int, root: int, *, members: int, owners: int) -> int:
    """Return the place of the member at this position of the tree."""
    if position == 0:
        return root
    spread = root * (members - owners) // owners
    return (root + 1 + (position - 1 + spread) % (members - 1)) % members


class RelayTrees:
    """The trees of one node's view, as far as they concern this node."""

    relays = True

    def __init__(self, cluster: Cluster, *, weights: int) -> None:
        self._cluster = cluster
        self._weights = weights
        self._view = NO_VIEW
        self._places: Mapping[Origin, int] = {}

    def origins_for(self, peer: Peer, origins: Iterable[Origin]) -> list[Origin]:
        """Return the origins whose updates this node sends this peer unasked: of `origins`, which have made
        some, and the owners. In a new view it begins with none until the peer has reported where it stands.
        """
        me, view = self._cluster.me, self._cluster.membership.view
        owners = view.members[: owner_count(len(view.members), self._weights)]
        fresh = peer.view >= view.number
        return [
            origin
            for origin in dict.fromkeys((*owners, *origins))
            if (fresh or origin in peer.cursors) and self._above(peer.origin, origin) == me
        ]

    def source(self, origin: Origin) -> Origin | None:
        """Return the peer that sends this node the updates of `origin` unasked; None: nobody does."""
        return self._above(self._cluster.me, origin)

    def _above(self, member: Origin, origin: Origin) -> Origin | None:
        """Return the nearest one above a member, in the tree of `origin`, to which this node has a link."""
        view = self._cluster.membership.view
        if view is not self._view:
            self._view, self._places = view, {each: place for place, each in enumerate(view.members)}
        place, root = self._places.get(member), self._places.get(origin)
        if place is None or root is None or place == root:
            return None
        size = len(view.members)
        owners = owner_count(size, self._weights)
        position = position_of(place, root, members=size, owners=owners)
        while position:
            position = (position - 1) // FAN_OUT
            above = view.members[place_at(position, root, members=size, owners=owners)]
            if above == self._cluster.me or self._is_there(above):
                return above
        return None

    def _is_there(self, member: Origin) -> bool:
        peer = self._cluster.peers.get(member)
        return peer is not None and peer.state not in (PeerState.LEAVING, PeerState.BARRED)
