"""Peers told by peers: each node tells those linked to it where it, and others linked to it, can be dialled.

So one address that can be reached is enough to meet all members. Of others it tells only members of its
view, and only those that know a view themselves: a run is founded by nodes that know each other otherwise.
What is told is one table for all who are elsewhere and one for those on this machine, made anew when
something has changed; a peer gets it at most once a patience, and every twelve patiences all the same.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from p2psgd.core.frontier import Origin
from p2psgd.core.timing import Timing
from p2psgd.discovery.address import Address
from p2psgd.discovery.hints import Hints, ip_of, may_tell
from p2psgd.net.reasons import Reasons
from p2psgd.wire.addresses import IPAddress, PeerRow, pack_ip, pack_peers, parse_ip, parse_peers
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import MEMBERS_MAX, Peers, pack_message, parse_message

HEARD_MAX: Final = 8  # PEERS of one peer in a patience that are read; it should send one


class PeerConnection(Protocol):
    """What is seen of a connection to a peer."""

    dialled: bool
    remote: Address | None


class PeerLink(Protocol):
    """A link, as the mesh has it."""

    @property
    def peer(self) -> Origin: ...
    @property
    def connection(self) -> PeerConnection: ...


class LinkedPeers(Protocol):
    """What the mesh does for it."""

    @property
    def links(self) -> Mapping[int, PeerLink]: ...
    @property
    def dropped(self) -> Reasons: ...
    def send(self, peer: Origin, frame: bytes) -> None: ...
    def takes_more(self, peer: Origin) -> bool: ...


@dataclass(slots=True)
class _Acquaintance:
    """A linked peer: where it says that it is, and when it was told what."""

    ip: IPAddress | None = None  # as advertised; None: as it is seen
    port: int | None = None  # None: it has not told yet
    told: Peers | None = None
    told_at: float = float("-inf")
    heard: int = 0  # PEERS since
    heard_since: float = float("-inf")


class Telling:
    """Of one node."""

    def __init__(
        self,
        mesh: LinkedPeers,
        hints: Hints,
        *,
        me: int,
        port: int,
        advertised: Address | None,
        timing: Timing,
        now: Callable[[], float],
    ) -> None:
        """This node listens on `port`; `advertised`, an IP address, is where others can dial it if that is
        not where they see it.
        """
        self._mesh = mesh
        self._hints = hints
        self._me = me
        self._ip = b""
        self._port = port
        if advertised is not None:
            self._ip, self._port = pack_ip(ipaddress.ip_address(advertised.host)), advertised.port
        self._timing = timing
        self._now = now
        self._known: dict[Origin, _Acquaintance] = {}

    def link_opened(self, peer: Origin) -> None:
        self._known[peer] = _Acquaintance()

    def link_closed(self, peer: Origin) -> None:
        self._known.pop(peer, None)

    def pass_time(self, members: Collection[int], informed: Callable[[Origin], bool]) -> None:
        """Tell whom it is due. `members` of the view that this node knows; `informed` peers know one, too."""
        now, tables = self._now(), dict[tuple[bool, bool], Peers]()
        for peer, known in self._known.items():
            link = self._mesh.links.get(peer.node)
            if link is None or now - known.told_at < self._timing.patience_s:
                continue
            seen = None if link.connection.remote is None else ip_of(link.connection.remote)
            kind = informed(peer), seen is not None and seen.is_loopback
            if kind not in tables:
                tables[kind] = self._pack(members if kind[0] else (), seen)
            again = now - known.told_at >= self._timing.gone_s
            if (again or tables[kind] != known.told) and self._mesh.takes_more(peer):
                known.told, known.told_at = tables[kind], now
                self._mesh.send(peer, pack_message(tables[kind]))

    def hear(self, peer: Origin, body: Body, members: Collection[int]) -> None:
        """A PEERS came; PeerError if it is not one. Of nodes that are no members nothing is kept."""
        known, now = self._known.get(peer), self._now()
        if known is None:
            return
        if now - known.heard_since >= self._timing.patience_s:
            known.heard, known.heard_since = 0, now
        known.heard += 1
        if known.heard > HEARD_MAX:
            self._mesh.dropped.count("peers told too often")
            return
        message = parse_message(FrameType.PEERS, body)
        assert isinstance(message, Peers)
        ip = parse_ip(message.ip) if message.ip else None
        rows = parse_peers(message.peers)
        known.ip, known.port = ip, message.port
        link = self._mesh.links.get(peer.node)
        seen = None if link is None or link.connection.remote is None else ip_of(link.connection.remote)
        place = self._place(link) if link is not None else None
        told = [row for row in rows if row.node in members and row.node not in (self._me, peer.node)]
        for row in told if place is None else [place, *told]:
            if may_tell(row.ip, to=seen):
                self._hints.tell(row.node, Address(str(row.ip), row.port))
            else:
                self._mesh.dropped.count("address of another machine's own")

    def _pack(self, members: Collection[int], to: IPAddress | None) -> Peers:
        rows = []
        for node, link in self._mesh.links.items():
            place = self._place(link) if node in members else None
            if place is not None and may_tell(place.ip, to=to):
                rows.append(place)
        return Peers(ip=self._ip, port=self._port, peers=pack_peers(rows[:MEMBERS_MAX]))

    def _place(self, link: PeerLink) -> PeerRow | None:
        """Where a linked peer can be dialled: where it says, where this node has, or where it is seen."""
        known, remote = self._known.get(link.peer), link.connection.remote
        seen = None if remote is None else ip_of(remote)
        if known is not None and known.ip is not None and known.port is not None:
            return PeerRow(link.peer.node, known.ip, known.port)
        if seen is None or remote is None:
            return None
        if link.connection.dialled:
            return PeerRow(link.peer.node, seen, remote.port)
        return None if known is None or known.port is None else PeerRow(link.peer.node, seen, known.port)
