"""Eviction: the log makes room, slow members are evicted, and a removed node keeps its link for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import Alert, Drop
from p2psgd.core.events import PeerMessage, PeerStatus
from p2psgd.core.frontier import Origin
from p2psgd.core.metrics import Tally
from p2psgd.core.node_state import Node
from p2psgd.core.peer import Peer
from p2psgd.core.retention import EVICT, TRIM_FOR_JOINER, WARN, Retention
from p2psgd.core.send import Outbound
from p2psgd.core.view import View
from p2psgd.wire.messages import ViewNews, pack_message
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# Looking after log and members as time passes: trim, warn, ask for evictions, make room.


JOINING_TIMEOUTS: Final = 4  # for which a joiner may hold back a full log
WAITED_FOR_TIMEOUTS: Final = 2  # for which a member may be silent while a joiner waits for it


class Eviction:
    """Decides for one replica when to trim, warn and evict; `look` runs several times a second."""

    def __init__(
        self, cluster: Cluster, *, node: Node, retention: Retention, tally: Tally, out: Outbound, now: float
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._retention = retention
        self._tally = tally
        self._out = out
        self._warned = False
        self._wished = False  # that somebody be evicted, at the last look
        # members, and since when they are known as such
        self._since = dict.fromkeys(cluster.membership.view.members, now)

    def look(self, late: Mapping[Origin, str], now: float) -> None:
        """Trim, then warn and ask for evictions by how full the log still is. `late`: members that hold a
        ring back, and how.
        """
        self._retention.look(
            self._cluster.membership.view, ready=self._node.ready, own_bytes=self._tally.own_bytes
        )
        fullness = self._retention.fullness
        if fullness >= WARN and not self._warned:
            who = (
                ", ".join(map(self._cluster.name_of, self._retention.holders[:3]))
                or "the lack of an agreed view"
            )
            self._out.emit(Alert(f"the log is {fullness:.0%} full, held back by {who}"))
        self._warned = fullness >= WARN
        requests = self._requests(late, now) if self._node.ready else {}
        if not (requests or self._wished):
            return
        self._wished = bool(requests)
        for member in self._cluster.membership.view.members:
            if member in requests:
                self._cluster.membership.request_eviction(member.node, requests[member], now)
            else:
                self._cluster.membership.withdraw_eviction(member.node)

    def _requests(self, late: Mapping[Origin, str], now: float) -> dict[Origin, str]:
        """Return the members to evict, and why: the one that most holds back a nearly full log, stragglers of
        a ring, and, while a member is not READY and so waits for all the others, silent members.
        """
        view, requests = self._cluster.membership.view, dict(late)
        limit_s = WAITED_FOR_TIMEOUTS * self._cluster.timing.failure_timeout_s
        if any(
            not peer.ready and peer.status is not None and peer.origin in view
            for peer in self._cluster.peers.values()
        ):
            for member in self._cluster.other_members:
                acks, since = self._cluster.acks, self._since[member]
                if now - max(acks.heard_itself(member), since) <= limit_s:
                    continue
                silent_s = now - max(acks.heard(member), since)
                if silent_s > limit_s:
                    requests[member] = f"it has been silent for {silent_s:.0f} s while others wait for it"
        if self._retention.fullness >= EVICT:
            holders = (each for each in self._retention.holders if not self._is_joining(each, now))
            worst = next(holders, None)
            if worst is not None:
                requests[worst] = f"it holds back a log that is {self._retention.fullness:.0%} full"
        return requests

    def _is_joining(self, member: Origin, now: float) -> bool:
        """Return whether a member is on its way to READY, for less than four failure timeouts. Of a member
        that is not linked nothing shows whether it is READY: it has that time in any case.
        """
        peer = self._cluster.peers.get(member)
        if now - self._since[member] >= JOINING_TIMEOUTS * self._cluster.timing.failure_timeout_s:
            return False
        admitted_in = self._cluster.membership.view.member_since(member) or 0
        return peer is None or not peer.ready or peer.view < admitted_in  # what it said before is void

    def enter_view(self, before: View, now: float) -> None:
        """Make room by the view that ends, `before`: a newcomer has acknowledged nothing yet, so from now on
        nothing can be trimmed until it is READY.
        """
        view = self._cluster.membership.view
        if self._node.ready and any(member not in before for member in view.members):
            self._retention.trim(before, TRIM_FOR_JOINER)
        self._since = {member: self._since.get(member, now) for member in view.members}


# ----------------------------------------------------------------------------
# Links of nodes that were removed for good: what such a node may still send, and for how long.
#
# It may not know yet that it was removed, and is sent the view that says so. It may know a later view than
# this node, and be the only one left that can send it: VIEW is taken. Nothing else of it counts: no update,
# no acknowledgement of its own or of others, no vote; it is given no update and no snapshot. Its link ends as
# soon as it shows that it knows the view, and after one failure timeout in which it has brought no new one.


class Barring:
    """Ends the links of removed nodes. `Peer.barred_at`: since when a peer has been barred, or brought its
    last view.
    """

    def __init__(self, cluster: Cluster, out: Outbound) -> None:
        self._cluster = cluster
        self._out = out

    def on_message(self, peer: Peer, message: PeerMessage, now: float) -> None:
        """Take in a barred peer's message; PeerError if its link must end."""
        membership = self._cluster.membership
        number = membership.view.number
        if isinstance(message, ViewNews):
            membership.on_vote(peer.origin, message, now)
            if membership.view.number > number:
                peer.barred_at = now
        elif isinstance(message, PeerStatus):
            membership.check_number(message.view)
            if message.view == number:
                raise PeerError(RejectCode.FORBIDDEN, f"{peer.name} was removed from the run for good")
            if message.view < number:
                self.tell(peer)

    def tell(self, peer: Peer) -> None:
        """Send a barred peer the view that is known here, if its link takes anything."""
        if peer.credit > 0:
            self._out.send(peer, pack_message(self._cluster.membership.view.news()))

    def tick(self, now: float) -> None:
        """End the links of barred peers that have brought nothing for a failure timeout."""
        failure_timeout_s = self._cluster.timing.failure_timeout_s
        for peer in self._cluster.peers.values():
            if peer.barred and now - peer.barred_at > failure_timeout_s:
                words = (
                    f"{peer.name} was removed from the run for good, and brought no view for"
                    f" {failure_timeout_s:g} s"
                )
                self._out.emit(Drop(peer.origin, RejectCode.FORBIDDEN, words))
