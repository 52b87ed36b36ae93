"""What a line of a list of hosts stands for: one host, by one address or several, or several hosts.

A name with one IPv4 and one IPv6 address is one host. With more of a kind it is several, as the names of
services without an address of their own are: then each address of the kind that has more is one host's.
Which of them are this node itself is known by where it listens.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.discovery.resolver import ask_infos
from p2psgd.wire.addresses import plain_ip

ADDRESSES_MAX: Final = 1023  # of one name; as many peers as a node can have

Host = tuple[Address, ...]  # all of its numeric addresses that are known, in the order in which to try them


class UnknownNameError(Exception):
    """The name does not resolve, now; the words say why."""


def is_numeric(address: Address) -> bool:
    """Its host is an IP address."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True


def is_loopback(address: Address) -> bool:
    """Its host is written as a loopback address, or as localhost."""
    return address.host == "localhost" or (is_numeric(address) and plain_ip(address.host).is_loopback)


async def look_up(address: Address, *, timeout_s: float) -> Host:
    """The numeric addresses that it has now, in the order in which the system would try them (RFC 6724);
    UnknownNameError if there is none within `timeout_s`.
    """
    asked = ask_infos(address.host, 0)
    await asyncio.wait([asked], timeout=timeout_s)
    if not asked.done():
        raise UnknownNameError(f"the name was not resolved within {timeout_s:.0f} s")
    try:
        infos = asked.result()
    except (OSError, UnicodeError):
        raise UnknownNameError("the name does not resolve") from None
    found = dict.fromkeys(
        Address(_numeric(info[4]), address.port)
        for info in infos
        if info[0] in (socket.AF_INET, socket.AF_INET6)
    )
    if not found:
        raise UnknownNameError("the name has no address")
    return tuple(found)[:ADDRESSES_MAX]


def hosts_of(found: Host) -> list[Host]:
    """The hosts that these addresses of one name are of; those of several in ascending order."""
    six = tuple(each for each in found if ":" in each.host)
    four = tuple(each for each in found if ":" not in each.host)
    preferred, other = (six, four) if found[:1] == six[:1] else (four, six)
    most = other if len(other) > len(preferred) else preferred
    return [found] if len(most) == 1 else [(each,) for each in sorted(most)]


def is_here(address: Address, listening: Address) -> bool:
    """It is this machine's, and whoever listens on `listening` accepts what comes to it, but for the port."""
    try:
        ip, listens = plain_ip(address.host), plain_ip(listening.host)
    except ValueError:
        return False
    return (listens.is_unspecified or ip == listens) and _is_local(address.host)


def is_own(address: Address, own: Sequence[Address]) -> bool:
    """It leads to this node, which listens on the first of `own`, and is known to others by the rest."""
    return address in own[1:] or (address.port == own[0].port and is_here(address, own[0]))


def _is_local(host: str) -> bool:
    """An address is this machine's if a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(socket.getaddrinfo(host, 0, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)[0][4])
    except OSError:
        return False
    return True


def _numeric(sockaddr: tuple[object, ...]) -> str:
    """The address, with its scope if it needs one, and IPv4 if it is that, mapped."""
    host = str(sockaddr[0])
    if len(sockaddr) == 4 and sockaddr[3] and "%" not in host:
        host = f"{host}%{sockaddr[3]}"
    return str(plain_ip(host))
