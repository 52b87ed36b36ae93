"""By which interface and with which address of its own this machine speaks to its peers, and why."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Sequence
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.doctor.finding import Finding, ok, problem
from p2psgd.doctor.peer import Peer
from p2psgd.doctor.route import Route, find_route
from p2psgd.errors import words_of
from p2psgd.ops import numerals

CHECK: Final = "route"
NAMED_MAX: Final = 4  # peers, in one line


def check_routes(peers: Sequence[Peer], listen: Address) -> list[Finding]:
    """A line for each way out, with those that are reached by it."""
    found: list[Finding] = []
    ways: dict[tuple[str, str, str], list[str]] = {}
    for peer in peers:
        if not peer.hosts:
            continue
        host = peer.hosts[0]
        try:
            route = find_route(host)
        except OSError as error:
            found.append(_no_route(peer, host, error))
            continue
        ways.setdefault((route.interface, route.source, route.why(host)), []).append(str(peer.address))
        if clash := _listens_elsewhere(peer, route, listen):
            found.append(clash)
    for (interface, source, why), names in ways.items():
        more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
        whom = numerals.listed([*names[:NAMED_MAX], *more])
        found.append(ok(CHECK, f"{whom}: from {source} by {interface} ({why})"))
    return found


def _no_route(peer: Peer, host: str, error: OSError) -> Finding:
    words = f"this machine knows no way to {peer.address}"
    if host not in str(peer.address):
        words += f", which is {host}"
    if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        words += f": {words_of(error)}"
    return problem(CHECK, words, f"is the network up? ip address; ip route get {host}")


def _listens_elsewhere(peer: Peer, route: Route, listen: Address) -> Finding | None:
    """A node that listens on an address to which its peers have no way."""
    try:
        own = ipaddress.ip_address(listen.host)
    except ValueError:
        return None
    if not own.is_loopback or ipaddress.ip_address(route.source.partition("%")[0]).is_loopback:
        return None
    words = f"this node listens on {listen}, which {peer.address} cannot reach: it is for this machine alone"
    return problem(CHECK, words, f"--listen 0.0.0.0:{listen.port}, or {route.source}:{listen.port}")
