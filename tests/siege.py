"""One attacker with many addresses, each of which has a connection that says nothing, and dials again as soon
as that is closed.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from p2psgd.net.address import Address, parse_address

PAUSE_S: Final = 0.005  # after a connection of an address was closed, and before its next one
IPV6_FREEBIND: Final = 78  # of Linux: any address can be bound, whether it is this machine's or not


class Siege:
    """`held` and `tried` count connections: those that are there now, and all so far."""

    def __init__(self, target: Address, sources: Sequence[str]) -> None:
        self.tried = 0
        self._target = (target.host, target.port)
        self._selector = selectors.DefaultSelector()
        self._due = [(0.0, source) for source in sources]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="siege")

    @property
    def held(self) -> int:
        return len(self._selector.get_map())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        for key in [*self._selector.get_map().values()]:
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._over.is_set():
            while self._due and self._due[0][0] <= time.monotonic():
                self._connect(heapq.heappop(self._due)[1])
            for key, _ in self._selector.select(PAUSE_S / 4):
                assert isinstance(key.fileobj, socket.socket)
                self._hung_up(key.fileobj, key.data)

    def _connect(self, source: str) -> None:
        self.tried += 1
        connecting = connecting_from(source)
        code = connecting.connect_ex(self._target)
        assert code in (0, errno.EINPROGRESS), os.strerror(code)
        self._selector.register(connecting, selectors.EVENT_READ, source)

    def _hung_up(self, connected: socket.socket, source: str) -> None:
        with contextlib.suppress(OSError):
            if connected.recv(4096):
                return
        self._selector.unregister(connected)
        connected.close()
        heapq.heappush(self._due, (time.monotonic() + PAUSE_S, source))


def connecting_from(source: str) -> socket.socket:
    """A socket with this address that does not wait."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    connecting = socket.socket(family)
    if family == socket.AF_INET6:
        connecting.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    connecting.setblocking(False)
    connecting.bind((source, 0))
    return connecting


@contextlib.contextmanager
def besieged(target: Address, sources: Sequence[str]) -> Iterator[Siege]:
    """Meanwhile that goes on."""
    siege = Siege(target, sources)
    siege.start()
    try:
        yield siege
    finally:
        siege.stop()


def loopback_addresses(count: int) -> list[str]:
    """So many, none of them 127.0.0.1."""
    return [f"127.0.0.{number}" for number in range(2, count + 2)]


def main() -> None:
    """Besiege the address that the first argument names from all others, until the standard input ends."""
    target, *sources = sys.argv[1:]
    with besieged(parse_address(target), sources):
        sys.stdin.read()


if __name__ == "__main__":
    main()
