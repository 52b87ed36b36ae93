"""Whom this node has reason to expect: what the address of a connection tells before its greeting does.

An IPv6 /64 is one host, for whoever has one address of it mostly has all 2^64 (RFC 6177); an IPv4 address is
one, and may stand for many nodes behind a NAT. Nothing is trusted for its address: it only decides who is let
in to greet when not all can be.
"""

from __future__ import annotations

import enum
import functools
import ipaddress
from collections.abc import Callable, Collection, Iterable
from typing import Final

from p2psgd.wire.addresses import plain_ip

LINKED_MAX: Final = 1024  # addresses that are remembered; a node has at most 1,023 links
REFRESH_S: Final = 1.0  # the list and what peers tell may name thousands of addresses


class Standing(enum.IntEnum):
    """How much there is to be said for a connection, the least first."""

    STRANGER = 0
    NEIGHBOUR = 1  # in the same /64 as one that is known
    KNOWN = 2  # of the list, told by peers, or linked before
    CERTIFIED = 3  # its handshake has shown a certificate of the run


class KnownHosts:
    """`listed` reads the addresses that the list names now; `told` are those of members, as peers tell."""

    def __init__(self, listed: Callable[[], Iterable[str]] = tuple) -> None:
        self.told: Collection[str] = ()
        self._listed = listed
        self._linked: dict[str, None] = {}  # the latest last
        self._addresses: frozenset[str] = frozenset()
        self._hosts: frozenset[str] = frozenset()
        self._read_at = float("-inf")

    def linked(self, ip: str) -> None:
        """A peer at this address has been accepted."""
        ip = unscoped(ip)
        self._linked.pop(ip, None)
        self._linked[ip] = None
        if len(self._linked) > LINKED_MAX:
            del self._linked[next(iter(self._linked))]

    def standing(self, ip: str, now: float) -> Standing:
        """Of whoever connects from this address; what has changed counts within REFRESH_S."""
        ip = unscoped(ip)
        if now - self._read_at >= REFRESH_S:
            self._read_at = now
            self._addresses = frozenset(map(unscoped, (*self._listed(), *self.told)))
            self._hosts = frozenset(map(host_of, (*self._addresses, *self._linked)))
        if ip in self._linked or ip in self._addresses:
            return Standing.KNOWN
        return Standing.NEIGHBOUR if host_of(ip) in self._hosts else Standing.STRANGER


@functools.lru_cache(maxsize=8192)
def host_of(ip: str) -> str:
    """The IPv4 address, also of one that is mapped into IPv6; of any other IPv6 address its /64."""
    ip = unscoped(ip)
    if ":" not in ip:
        return ip
    prefix = int(ipaddress.IPv6Address(ip)) >> 64 << 64
    return f"{ipaddress.IPv6Address(prefix)}/64"


@functools.lru_cache(maxsize=8192)
def unscoped(ip: str) -> str:
    """An IP address as it is written shortest, without a scope; what is none stays as it is."""
    try:
        return str(plain_ip(ip.partition("%")[0]))
    except ValueError:
        return ip
