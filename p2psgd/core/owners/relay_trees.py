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
from p2psgd.core.view import NO_VIEW, View

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
        self._owners = 0
        # By member and origin, those above the member that are nearer than this node; None: it is not above
        self._nearer: dict[tuple[Origin, Origin], tuple[Origin, ...] | None] = {}

    def origins_for(self, peer: Peer, origins: Iterable[Origin]) -> list[Origin]:
        """Return the origins whose updates this node sends this peer unasked: of `origins`, which have made
        some, and the owners. In a new view it begins with none until the peer has reported where it stands.
        """
        view = self._follow_view()
        owners = view.members[: self._owners]
        fresh = peer.view >= view.number
        return [
            origin
            for origin in dict.fromkeys((*owners, *origins))
            if (fresh or origin in peer.cursors) and self._serves(peer.origin, origin)
        ]

    def _serves(self, member: Origin, origin: Origin) -> bool:
        """Return whether this node is the nearest one above a member, of those to which it has a link."""
        if member not in self._places or origin not in self._places:
            return False
        if (member, origin) not in self._nearer:
            self._nearer[member, origin] = self._find_nearer(self._places[member], self._places[origin])
        nearer = self._nearer[member, origin]
        return nearer is not None and not any(map(self._is_there, nearer))

    def _find_nearer(self, place: int, root: int) -> tuple[Origin, ...] | None:
        """Return those between this node and the member at `place`, the nearest to that first; None if this
        node is not above it.
        """
        mine = self._places.get(self._cluster.me)
        if mine is None or place == root:
            return None
        own, between = self._position(mine, root), list[int]()
        position = (self._position(place, root) - 1) // FAN_OUT
        while position > own:
            between.append(position)
            position = (position - 1) // FAN_OUT
        return tuple(self._member_at(each, root) for each in between) if position == own else None

    def _position(self, place: int, root: int) -> int:
        return position_of(place, root, members=len(self._view.members), owners=self._owners)

    def _member_at(self, position: int, root: int) -> Origin:
        members = self._view.members
        return members[place_at(position, root, members=len(members), owners=self._owners)]

    def source(self, origin: Origin) -> Origin | None:
        """Return the peer that sends this node the updates of `origin` unasked; None: nobody does."""
        self._follow_view()
        place, root = self._places.get(self._cluster.me), self._places.get(origin)
        position = 0 if place is None or root is None else self._position(place, root)
        while position and root is not None:
            position = (position - 1) // FAN_OUT
            if self._is_there(above := self._member_at(position, root)):
                return above
        return None

    def _follow_view(self) -> View:
        view = self._cluster.membership.view
        if view is not self._view:
            self._view = view
            self._places = {each: place for place, each in enumerate(view.members)}
            self._owners = owner_count(len(view.members), self._weights)
            self._nearer.clear()
        return view

    def _is_there(self, member: Origin) -> bool:
        peer = self._cluster.peers.get(member)
        return peer is not None and peer.state not in (PeerState.LEAVING, PeerState.BARRED)
