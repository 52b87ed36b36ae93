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
        self._owners: dict[Origin, None] = {}  # in the order of their places
        self._above: dict[Origin, list[tuple[Origin, tuple[Origin, ...]]]] = {}  # of owners, by member

    def origins_for(self, peer: Peer, origins: Iterable[Origin]) -> list[Origin]:
        """Return the origins whose updates this node sends this peer unasked: of `origins`, which have made
        some, and the owners. In a new view it begins with none until the peer has reported where it stands.
        """
        fresh = peer.view >= self._follow_view().number
        above = self._above.get(peer.origin)
        if above is None:
            above = self._above[peer.origin] = self._find_above(peer.origin, self._owners)
        if others := [origin for origin in origins if origin not in self._owners]:
            above = above + self._find_above(peer.origin, others)
        return [
            origin
            for origin, nearer in above
            if (fresh or origin in peer.cursors) and not any(map(self._is_there, nearer))
        ]

    def _find_above(
        self, member: Origin, origins: Iterable[Origin]
    ) -> list[tuple[Origin, tuple[Origin, ...]]]:
        """Return those of `origins` in whose trees this node is above a member, and who is in between, the
        nearest to the member first: while there is a link to one of these, that one sends.
        """
        place, found = self._places.get(member), []
        for origin in origins:
            root = self._places.get(origin)
            nearer = None if place is None or root is None else self._find_nearer(place, root)
            if nearer is not None:
                found.append((origin, nearer))
        return found

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
        return position_of(place, root, members=len(self._view.members), owners=len(self._owners))

    def _member_at(self, position: int, root: int) -> Origin:
        members = self._view.members
        return members[place_at(position, root, members=len(members), owners=len(self._owners))]

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
            self._owners = dict.fromkeys(view.members[: owner_count(len(view.members), self._weights)])
            self._above.clear()
        return view

    def _is_there(self, member: Origin) -> bool:
        peer = self._cluster.peers.get(member)
        return peer is not None and peer.state not in (PeerState.LEAVING, PeerState.BARRED)
