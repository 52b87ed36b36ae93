"""Listening on the address that peers dial, before there is anything to tell them.

A port in use is found at the start: two sockets may be bound to one port, but only one can listen. Peers
that connect before this node knows its run wait in the backlog, and are greeted when it does, or try again.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.discovery.resolver import ask_infos
from p2psgd.errors import ExitCode, UsageError, words_of

BACKLOG: Final = 128

log = logging.getLogger("p2psgd.net")


async def bind(listen: Address, *, option: str = "--listen") -> tuple[socket.socket, Address]:
    """A listening socket on which nobody accepts yet, and its numeric address; UsageError, which names the
    `option`, if it cannot be had.
    """
    bound: socket.socket | None = None
    try:
        info = (await asyncio.shield(ask_infos(listen.host, listen.port)))[0]
        bound = socket.socket(info[0], socket.SOCK_STREAM)
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if info[0] == socket.AF_INET6 and ipaddress.ip_address(info[4][0]).is_unspecified:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # [::] is for both, on every system
        bound.bind(info[4])
        bound.listen(BACKLOG)
    except OSError as error:
        if bound is not None:
            bound.close()
        words = words_of(error)
        if error.errno == errno.EADDRINUSE:
            words += f"; is another node running here? {option} takes another address or port"
        raise UsageError(f"cannot listen on {listen}: {words}", ExitCode.CONFIGURATION) from None
    name = bound.getsockname()
    return bound, Address(str(name[0]), int(name[1]))


def check_exposure(listening: Address, *, encrypted: bool, insecure: bool) -> None:
    """UsageError if a node without TLS listens beyond this machine, unless it was told that it may."""
    if encrypted:
        return
    if insecure:
        log.warning(
            "PLAINTEXT, as --insecure-plaintext says: whoever reaches %s can read and alter the run, so keep "
            "it inside a closed network",
            listening,
        )
    elif not ipaddress.ip_address(listening.host).is_loopback:
        raise UsageError(
            f"listening on {listening} without TLS would let whoever reaches it read and alter the run: "
            "make certificates once with `p2psgd ca init` and `p2psgd ca issue NODE...`, and start each node "
            "with --tls DIR (--insecure-plaintext is for closed lab networks)",
            ExitCode.CONFIGURATION,
        )
