"""Lines that stand for several hosts, as names of services do: each host is met by itself."""

from __future__ import annotations

from p2psgd.discovery.address import Address
from p2psgd.discovery.hosts import HOSTS_MAX, Hosts
from p2psgd.discovery.naming import UnknownNameError, hosts_of, is_own, look_up


async def each_host(hosts: Hosts, listening: Address, *, timeout_s: float) -> tuple[Address, ...]:
    """All to dial, at most HOSTS_MAX: lines as they are, and an address for each host of one that has
    several, this node left out.
    """
    found: dict[Address, None] = {}
    for line in hosts.peers:
        if line not in hosts.several:
            found[line] = None
            continue
        try:
            several = hosts_of(await look_up(line, timeout_s=timeout_s))
        except UnknownNameError:
            found[line] = None
            continue
        for host in several:
            if not any(is_own(each, [listening]) for each in host):
                found[host[0]] = None
    return tuple(found)[:HOSTS_MAX]
