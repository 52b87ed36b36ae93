"""Addresses at which peers can be dialled, as they travel in PEERS: 16 bytes and a port.

IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2), so that a row has one form.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from p2psgd.errors import PeerError
from p2psgd.wire.tables import unpack_table

IP_BYTES: Final = 16
PEER_BYTES: Final = 26

_PEER: Final = struct.Struct("<Q16sH")
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class PeerRow(NamedTuple):
    """A node, and where somebody says that it can be dialled."""

    node: int
    ip: IPAddress
    port: int


def plain_ip(text: str) -> IPAddress:
    """The address that `text` is; one that is mapped into IPv6 is IPv4. ValueError if it is none."""
    ip = ipaddress.ip_address(text)
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def pack_ip(ip: IPAddress) -> bytes:
    """16 bytes, in network order; a scope is left out."""
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


@functools.lru_cache(maxsize=4096)  # the same few come again and again
def parse_ip(packed: bytes) -> IPAddress:
    """The address; PeerError if it is not 16 bytes, or none that one node can have."""
    if len(packed) != IP_BYTES:
        raise PeerError("message", f"an address of {len(packed)} bytes has not {IP_BYTES}")
    six = ipaddress.IPv6Address(packed)
    ip = six.ipv4_mapped or six
    if ip.is_unspecified or ip.is_multicast or ip == _BROADCAST:
        raise PeerError("message", f"{ip} is no address of a node")
    return ip


def pack_peers(rows: Iterable[PeerRow]) -> bytes:
    """The rows, sorted by node, 26 bytes each; no node may stand there twice."""
    return b"".join(
        _PEER.pack(row.node, pack_ip(row.ip), row.port) for row in sorted(rows, key=lambda row: row.node)
    )


def parse_peers(table: bytes) -> list[PeerRow]:
    """The rows; PeerError unless whole, strictly ascending by node, each with an address and a port."""
    rows = []
    for node, ip, port in unpack_table(_PEER, table, keys=1, what="table of peers"):
        if port == 0:
            raise PeerError("message", "a table of peers has a row with port 0")
        rows.append(PeerRow(node, parse_ip(ip), port))
    return rows
