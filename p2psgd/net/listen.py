"""Listening for peers and accepting their connections while descriptors are left."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Final

from p2psgd.base.aio import is_reserved
from p2psgd.base.errors import ExitCode, UsageError, words_of
from p2psgd.net.address import Address, ask_infos

# ----------------------------------------------------------------------------
# Listening on the address that peers dial, before there is anything to send them.
#
# A port in use is found at the start: two sockets may be bound to one port, but only one can listen. Peers
# that connect before this node knows its run wait in the backlog, and are greeted when it does, or try again.


BACKLOG: Final = 128

log = logging.getLogger("p2psgd.net")


async def bind(listen: Address, *, option: str = "--listen") -> tuple[socket.socket, Address]:
    """Bind a listening socket that accepts no connection yet, and return it with its numeric address;
    UsageError, which names the `option`, if that fails.
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
    """Raise UsageError if a node without TLS listens beyond this machine, unless `insecure` allows it."""
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


# ----------------------------------------------------------------------------
# Accepting connections, one at a time, as long as descriptors are left for them.
#
# asyncio's own servers accept as many as there are until no descriptor is left: by then the node could not
# write its files any more either.


PAUSE_S: Final = 1.0  # when nothing can be accepted at all
# Between two that are refused: time for one that gives way to be closed, and no load for the loop. A longer
# pause would let a crowd in the backlog keep those behind it out.
REFUSED_S: Final = 0.01
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def accept_on(
    listening: socket.socket,
    make: Callable[[], asyncio.BaseProtocol],
    *,
    refused: Callable[[str], None],
    pace_s: float = 0.0,
) -> None:
    """Accept until cancelled, at most one in `pace_s`: `make` gives the protocol of each connection.

    A connection that gets a descriptor kept for this process's files is closed at once, and `refused` called
    with the host it came from: it may close others.
    """
    loop = asyncio.get_running_loop()
    while True:
        await _readable(listening)
        try:  # not loop.sock_accept: cancelled at the wrong moment, it would lose what it has accepted
            accepted, address = listening.accept()
        except BlockingIOError:
            continue
        except OSError as error:  # or it was gone before it was accepted
            await asyncio.sleep(PAUSE_S if error.errno in _SHORT else REFUSED_S)
            continue
        if is_reserved(accepted.fileno()):
            accepted.close()
            refused(str(address[0]))
            await asyncio.sleep(REFUSED_S)
            continue
        accepted.setblocking(False)
        try:
            await loop.connect_accepted_socket(make, accepted)
        except OSError:
            accepted.close()
        if pace_s:
            await asyncio.sleep(pace_s)


async def _readable(listening: socket.socket) -> None:
    """Wait until a peer has connected."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    loop.add_reader(listening, connected.set)
    try:
        await connected.wait()
    finally:
        loop.remove_reader(listening)
