"""Accepting connections, one at a time, as long as descriptors are left for them.

asyncio's own servers take in as many as there are until no descriptor is left: by then the node could not
write its files any more either.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from p2psgd.descriptors import is_reserved

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
    """Accept until cancelled, one in `pace_s` at the most: `make` gives the protocol of each connection.

    One that gets a descriptor kept for this process's files is closed at once, and `refused` called with the
    host it came from: it may close others.
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
    """Wait until somebody has connected."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    loop.add_reader(listening, connected.set)
    try:
        await connected.wait()
    finally:
        loop.remove_reader(listening)
