"""`dns:NAME[:PORT]`: all addresses of one name, such as that of a headless service.

The name is the whole list: the node resolves it as it resolves a name in a file, once a failure timeout while
one of its hosts is away and every twelve otherwise (net/dialer.py). So it may have no address yet.
"""

from __future__ import annotations

from p2psgd.base.errors import UsageError
from p2psgd.net.address import Address, parse_address
from p2psgd.net.peer_sources.source import PeerSource


def from_name(argument: str) -> PeerSource:
    """Return the source for NAME or NAME:PORT; UsageError if it is not one."""
    try:
        address = parse_address(argument)
    except ValueError as error:
        raise UsageError(f"--peers dns:NAME[:PORT]: {error}") from None

    def ask() -> tuple[Address, ...]:
        return (address,)

    return PeerSource(f"dns:{argument}", ask)
