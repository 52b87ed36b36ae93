"""Run the same ring over plain blocking sockets, without frames, checksums or daemons: what Python can reach
here.

`python -m benchmarks.ring.raw PLACE COUNT INTERFACE ADDRESS...`, each with a port. Each process has one
thread that receives and adds, and one that sends what has become ready.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from typing import Final

import numpy as np

from benchmarks.ring.worker import Numbers, serve, share_of

SEGMENT: Final = 65_536  # numbers, 256 KiB, as p2psgd's
CONNECT_TIMEOUT_S: Final = 30.0


class RawRing:
    """`sums` float32 (K,): this process's share before, the sum of all after `allreduce`."""

    def __init__(self, place: int, count: int, addresses: list[tuple[str, int]]) -> None:
        hosts = len(addresses)
        self.place, self.hosts, self.count = place, hosts, count
        self.sums = np.empty(count, np.float32)
        self._incoming = np.empty(SEGMENT, np.float32)
        self._outgoing: queue.SimpleQueue[Numbers | None] = queue.SimpleQueue()
        self._sent = threading.Semaphore(0)
        listening = socket.create_server(addresses[place])
        self._right = connect(addresses[(place + 1) % hosts])
        self._left, _ = listening.accept()
        listening.close()
        for each in (self._left, self._right):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._send_all, daemon=True).start()

    def allreduce(self, words: list[str]) -> Numbers:
        for segment in self._segments(self.place):
            self._outgoing.put(segment)
        for hop in range(2 * self.hosts - 2):
            for segment in self._segments(self.place - 1 - hop):
                if hop < self.hosts - 1:
                    incoming = self._incoming[: segment.size]
                    self._receive(incoming)
                    np.add(incoming, segment, out=segment)
                else:
                    self._receive(segment)
                if hop < 2 * self.hosts - 3:
                    self._outgoing.put(segment)
        # Until then the sums' memory is being read.
        self._outgoing.put(None)
        self._sent.acquire()
        return self.sums

    def _segments(self, chunk: int) -> list[Numbers]:
        chunk %= self.hosts
        first, end = (self.count * each // self.hosts for each in (chunk, chunk + 1))
        return [self.sums[start : min(start + SEGMENT, end)] for start in range(first, end, SEGMENT)]

    def _receive(self, numbers: Numbers) -> None:
        left = numbers.data.cast("B")
        while left:
            got = self._left.recv_into(left)
            assert got, "the left neighbour is gone"
            left = left[got:]

    def _send_all(self) -> None:
        while True:
            segment = self._outgoing.get()
            if segment is None:
                self._sent.release()
            else:
                self._right.sendall(segment.data)


def connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    place, count = map(int, sys.argv[1:3])
    addresses = [each.rsplit(":", 1) for each in sys.argv[4:]]
    ring = RawRing(place, count, [(host, int(port)) for host, port in addresses])
    share = share_of(place, count)

    def prepare() -> None:
        ring.sums[:] = share

    serve(ring.allreduce, prepare=prepare)


if __name__ == "__main__":
    main()
