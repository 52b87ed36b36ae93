"""Peer exchange: addresses that peers report to each other, and the file that keeps them."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from p2psgd.core.frontier import Origin, parse_node_id
from p2psgd.core.timing import Timing
from p2psgd.net.address import Address, Host, parse_address
from p2psgd.net.rejections import DropCounters
from p2psgd.wire.frames import Body, FrameType
from p2psgd.wire.messages import (
    MEMBERS_MAX,
    IPAddress,
    PeerRow,
    Peers,
    pack_ip,
    pack_message,
    pack_peers,
    parse_ip,
    parse_message,
    parse_peers,
)

# ----------------------------------------------------------------------------
# Where nodes may be, as others report: from linked peers, from the local network, from before a restart.
#
# AddressHints and nothing else: a reported address is dialled, and the greeting decides which node is there.
# The newest few of each node are kept, and only of nodes that are members of the view; besides those, what
# the local network announces, while it does.


TOLD_MAX: Final = 4  # addresses of one node: seen from several sides, as where some are behind NAT
NODES_MAX: Final = 1024  # of which peers have told, members or not
NEARBY_MAX: Final = 256  # nodes on the local network


class AddressHints:
    """The addresses that were reported for all nodes. `version` counts all changes, `changed` those worth
    writing down.
    """

    def __init__(self) -> None:
        self.changed = 0
        self._sightings = 0
        self._told: dict[int, dict[Address, None]] = {}  # by node, the newest last
        self._nearby: dict[int, Host] = {}

    @property
    def version(self) -> int:
        return self.changed + self._sightings

    def tell(self, node: int, address: Address) -> None:
        """Record that the node is said to be dialled at this address."""
        places = self._told.get(node)
        if places is None:
            if len(self._told) >= NODES_MAX:
                return
            places = self._told[node] = {}
        if address not in places:
            self.changed += 1
        places.pop(address, None)
        places[address] = None
        if len(places) > TOLD_MAX:
            del places[next(iter(places))]

    def see(self, node: int, places: Iterable[Address]) -> bool:
        """Record where the local network announces the node now; False if it announces more than can
        be kept.
        """
        host = tuple(places)[:TOLD_MAX]
        self._sightings += host != self._nearby.get(node, ())
        if not host:
            self._nearby.pop(node, None)
        elif node in self._nearby or len(self._nearby) < NEARBY_MAX:
            self._nearby[node] = host
        return not host or node in self._nearby

    def keep(self, nodes: Collection[int]) -> None:
        """Forget what peers reported of all other nodes."""
        for node in [each for each in self._told if each not in nodes]:
            del self._told[node]
            self.changed += 1

    def wanted(self, members: Collection[int], me: int) -> Mapping[int, Host]:
        """Return the nodes to dial with their addresses, the newest first: members of the view, and nodes
        nearby.
        """
        wanted = {
            node: tuple(reversed(places)) for node, places in self._told.items() if node in members and places
        }
        for node, host in self._nearby.items():
            wanted[node] = tuple(dict.fromkeys((*host, *wanted.get(node, ()))))
        wanted.pop(me, None)
        return wanted

    def told(self) -> list[tuple[int, Address]]:
        """Return all addresses that peers have reported, in the order in which to `tell` them again."""
        return [(node, address) for node, places in self._told.items() for address in places]


def may_tell(ip: IPAddress, *, to: IPAddress | None) -> bool:
    """Return whether an address can mean the same to the peer that is seen at `to`: not link-local, and
    loopback only on this machine.
    """
    return not ip.is_link_local and (not ip.is_loopback or (to is not None and to.is_loopback))


def ip_of(address: Address) -> IPAddress | None:
    """Return the address's IP address; None if it is a name."""
    try:
        return ipaddress.ip_address(address.host)
    except ValueError:
        return None


# ----------------------------------------------------------------------------
# Peer exchange: each node sends the peers linked to it where it, and others linked to it, can be dialled.
#
# So one address that can be reached is enough to meet all members. Of others it reports only members of its
# view, and only to peers that know a view themselves: a run begins with nodes that know each other otherwise.
# The content is one table for all peers elsewhere and one for those on this machine, made anew when something
# has changed; a peer gets it at most once a failure timeout, and every twelve failure timeouts all the same.


HEARD_MAX: Final = 8  # PEERS of one peer in a failure timeout that are read; it should send one


class PeerConnection(Protocol):
    """The part of a connection to a peer that peer exchange reads."""

    dialled: bool
    remote: Address | None


class PeerLink(Protocol):
    """A link, as the mesh has it."""

    @property
    def peer(self) -> Origin: ...
    @property
    def connection(self) -> PeerConnection: ...


class LinkedPeers(Protocol):
    """The mesh, as far as peer exchange needs it."""

    @property
    def links(self) -> Mapping[int, PeerLink]: ...
    @property
    def dropped(self) -> DropCounters: ...
    def send(self, peer: Origin, frame: bytes) -> None: ...
    def takes_more(self, peer: Origin) -> bool: ...


@dataclass(slots=True)
class _Acquaintance:
    """A linked peer: the address that it reports for itself, and what it was sent when."""

    ip: IPAddress | None = None  # as advertised; None: as it is seen
    port: int | None = None  # None: it has not told yet
    told: Peers | None = None
    told_at: float = float("-inf")
    heard: int = 0  # PEERS since
    heard_since: float = float("-inf")


class PeerExchange:
    """The peer exchange of one node."""

    def __init__(
        self,
        mesh: LinkedPeers,
        hints: AddressHints,
        *,
        me: int,
        port: int,
        advertised: Address | None,
        timing: Timing,
        now: Callable[[], float],
    ) -> None:
        """Listen on `port`; `advertised`, an IP address, is where others can dial this node if that is not
        where they see it.
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
        self._due = float("-inf")

    def link_opened(self, peer: Origin) -> None:
        self._known[peer] = _Acquaintance()
        self._due = float("-inf")

    def link_closed(self, peer: Origin) -> None:
        self._known.pop(peer, None)

    def tick(self, members: Collection[int], informed: Callable[[Origin], bool]) -> None:
        """Send PEERS to the peers that are due. `members` of the view that this node knows; `informed` peers
        know one, too. It looks at once if a link has opened, else as often as STATUS is sent: tables made at
        every tick were a sixth of an idle node's work with 36 members.
        """
        now, tables = self._now(), dict[tuple[bool, bool], Peers]()
        if now < self._due:
            return
        self._due = now + self._timing.status_s
        for peer, known in self._known.items():
            link = self._mesh.links.get(peer.node)
            if link is None or now - known.told_at < self._timing.failure_timeout_s:
                continue
            seen = None if link.connection.remote is None else ip_of(link.connection.remote)
            kind = informed(peer), seen is not None and seen.is_loopback
            if kind not in tables:
                tables[kind] = self._pack(members if kind[0] else (), seen)
            again = now - known.told_at >= self._timing.gone_s
            if not (again or tables[kind] != known.told):
                continue
            if self._mesh.takes_more(peer):
                known.told, known.told_at = tables[kind], now
                self._mesh.send(peer, pack_message(tables[kind]))
            else:
                self._due = now

    def hear(self, peer: Origin, body: Body, members: Collection[int]) -> None:
        """Process a PEERS message; PeerError if it is not one. Of nodes that are not members nothing
        is kept.
        """
        known, now = self._known.get(peer), self._now()
        if known is None:
            return
        if now - known.heard_since >= self._timing.failure_timeout_s:
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
        """Return where a linked peer can be dialled: where it says, where this node has, or where it
        is seen.
        """
        known, remote = self._known.get(link.peer), link.connection.remote
        seen = None if remote is None else ip_of(remote)
        if known is not None and known.ip is not None and known.port is not None:
            return PeerRow(link.peer.node, known.ip, known.port)
        if seen is None or remote is None:
            return None
        if link.connection.dialled:
            return PeerRow(link.peer.node, seen, remote.port)
        return None if known is None or known.port is None else PeerRow(link.peer.node, seen, known.port)


# ----------------------------------------------------------------------------
# A file in the state directory with the addresses that peers have reported, so that a node that starts again
# finds its run also when the address it was first given is gone.
#
# One `address  # id` a line, as in a list of hosts. It may be lost or damaged: then it is as if it were
# empty.


NAME: Final = "known-peers.txt"
FILE_BYTES_MAX: Final = 512 * 1024
HEAD: Final = "# Where this node's peers were, as they told; written by the node itself.\n"

log = logging.getLogger("p2psgd.discovery")


def read_known_peers(state: Path, hints: AddressHints) -> None:
    """Read the file into `hints`, if there is one."""
    path = state / NAME
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError("it is too large")
        lines = path.read_text(encoding="ascii").splitlines()
        told = [_parse(line) for line in lines if not line.startswith("#")]
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        log.warning("%s is passed over: %s", path, error)
        return
    for node, address in told[: NODES_MAX * TOLD_MAX]:
        hints.tell(node, address)


def pack_known_peers(told: list[tuple[int, Address]]) -> bytes:
    """Return the file's content."""
    return (HEAD + "".join(f"{address}  # {node:016x}\n" for node, address in told)).encode("ascii")


def _parse(line: str) -> tuple[int, Address]:
    place, _, name = line.partition("#")
    node = parse_node_id(name.strip())
    if node is None:
        raise ValueError(f"{line!r:.80} is not an address and an id")
    return node, parse_address(place.strip())
