"""Where nodes may be, as others have told: from linked peers, from the local network, from before a restart.

Hints and nothing else: an address told is dialled, and the greeting decides who is there. The newest few of
each node are kept, and only of nodes that are members of the view; besides those, what the local network
tells, so long as it does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.discovery.naming import Host
from p2psgd.wire.addresses import IPAddress

TOLD_MAX: Final = 4  # addresses of one node: seen from several sides, as where some are behind NAT
NODES_MAX: Final = 1024  # of which peers have told, members or not
NEARBY_MAX: Final = 256  # nodes on the local network


class Hints:
    """What was told of all nodes. `version` counts all changes, `changed` those worth writing down."""

    def __init__(self) -> None:
        self.changed = 0
        self._sightings = 0
        self._told: dict[int, dict[Address, None]] = {}  # by node, the newest last
        self._nearby: dict[int, Host] = {}

    @property
    def version(self) -> int:
        return self.changed + self._sightings

    def tell(self, node: int, address: Address) -> None:
        """Somebody says that the node can be dialled there."""
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
        """The local network says that it is there now; False if more are than can be kept."""
        host = tuple(places)[:TOLD_MAX]
        self._sightings += host != self._nearby.get(node, ())
        if not host:
            self._nearby.pop(node, None)
        elif node in self._nearby or len(self._nearby) < NEARBY_MAX:
            self._nearby[node] = host
        return not host or node in self._nearby

    def keep(self, nodes: Collection[int]) -> None:
        """Forget what peers told of all other nodes."""
        for node in [each for each in self._told if each not in nodes]:
            del self._told[node]
            self.changed += 1

    def wanted(self, members: Collection[int], me: int) -> Mapping[int, Host]:
        """Whom to dial, and where: members of the view, and whoever is nearby; the newest address first."""
        wanted = {
            node: tuple(reversed(places)) for node, places in self._told.items() if node in members and places
        }
        for node, host in self._nearby.items():
            wanted[node] = tuple(dict.fromkeys((*host, *wanted.get(node, ()))))
        wanted.pop(me, None)
        return wanted

    def told(self) -> list[tuple[int, Address]]:
        """All that peers have told, in the order in which it is to be told again."""
        return [(node, address) for node, places in self._told.items() for address in places]


def may_tell(ip: IPAddress, *, to: IPAddress | None) -> bool:
    """An address can mean the same to whoever is seen at `to`: not link-local, and loopback only on this
    machine.
    """
    return not ip.is_link_local and (not ip.is_loopback or (to is not None and to.is_loopback))


def ip_of(address: Address) -> IPAddress | None:
    """Its IP address; None if it is a name."""
    try:
        return ipaddress.ip_address(address.host)
    except ValueError:
        return None
