"""Links of nodes that were removed for good: what such a node may still say, and for how long.

It may not know yet that it was removed, and is told the view that says so. It may know a later view than this
node, and be the only one left to tell it: VIEW is taken. Nothing else of it counts: no update, no
acknowledgement of its own or of others, no vote; it is given no update and no snapshot. Its link ends as soon
as it shows that it knows the view, and after one patience in which it has brought no new one.
"""

from __future__ import annotations

from p2psgd.core.effects import Drop
from p2psgd.core.events import LinkEvent, StatusReceived, VoteReceived
from p2psgd.core.parts import Parts
from p2psgd.core.peer import Peer
from p2psgd.errors import PeerError
from p2psgd.wire.messages import ViewNews, pack_message


class Barring:
    """Of one replica; `Peer.barred_at` says since when a peer has been barred or last brought a view."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def hear(self, peer: Peer, event: LinkEvent, now: float) -> None:
        """What a barred peer says; PeerError if its link is to end."""
        membership = self._parts.membership
        number = membership.view.number
        if isinstance(event, VoteReceived) and isinstance(event.message, ViewNews):
            membership.hear_vote(peer.origin, event.message, now)
            if membership.view.number > number:
                peer.barred_at = now
        elif isinstance(event, StatusReceived):
            membership.check_number(event.view)
            if event.view == number:
                raise PeerError("forbidden", f"{peer.name} was removed from the run for good")
            if event.view < number:
                self.tell(peer)

    def tell(self, peer: Peer) -> None:
        """Send it the view that is known here, if its link takes anything."""
        if peer.credit > 0:
            self._parts.out.send(peer, pack_message(self._parts.membership.view.news()))

    def pass_time(self, now: float) -> None:
        """End the links of those that have brought nothing for a patience."""
        patience_s = self._parts.timing.patience_s
        for peer in self._parts.peers.values():
            if peer.barred_at is not None and now - peer.barred_at > patience_s:
                words = (
                    f"{peer.name} was removed from the run for good, and brought no view for {patience_s:g} s"
                )
                self._parts.out.order(Drop(peer.origin, "forbidden", words))
