"""A LAN whose packets need a time from host to host, for kernels without netem.

A process in the bridge's namespace takes the bridge's place: it reads whole packets from the ports by packet
sockets, holds each for the delay, and writes it to the port of its receiver, where the port's own shaper
limits the rate as before. It knows no connections, so it delays all that hosts send. The kernel hands it
packets of up to 64 KiB uncut, with what their receiver needs to know of them, as a bridge gets them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.lan import Lan, command

ROOT: Final = Path(__file__).parents[2]
# Four links of 100 Mbit/s carry 2.5 MB in 50 ms.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
RECEIVE_BUFFER_BYTES: Final = 16 * 1024 * 1024  # of a port, for moments in which this process does not run
PACKET_BYTES_MAX: Final = 128 * 1024
READS_MAX: Final = 64  # packets of a port, until it is another's turn

# Of linux/if_packet.h, linux/if_ether.h and asm-generic/socket.h; `socket` does not have them.
SOL_PACKET: Final = 263
PACKET_VNET_HDR: Final = 15
PACKET_IGNORE_OUTGOING: Final = 23
ETH_P_ALL: Final = 3
SO_RCVBUFFORCE: Final = 33
VNET_HEADER_BYTES: Final = 10  # before each packet: its checksum and its pieces
MAC_BYTES: Final = 6


# ----------------------------------------------------------------------------
# What a switch does, without its ports.


@dataclass(slots=True)
class Switch:
    """Holds packets, and knows behind which port an address is. A packet that comes when HELD_BYTES_MAX are
    held is lost, as in a router whose queue is full.
    """

    ports: int
    delay_s: float
    lost: int = 0
    _held_bytes: int = 0
    _held: deque[tuple[float, int, bytes]] = field(default_factory=deque)  # due, from which port, packet
    _port_of: dict[bytes, int] = field(default_factory=dict)  # by address

    def take(self, now: float, port: int, packet: bytes) -> None:
        """Hold a packet that has come from a port; its Ethernet header follows VNET_HEADER_BYTES."""
        source = packet[VNET_HEADER_BYTES + MAC_BYTES : VNET_HEADER_BYTES + 2 * MAC_BYTES]
        self._port_of[source] = port
        if self._held_bytes + len(packet) > HELD_BYTES_MAX:
            self.lost += 1
            return
        self._held_bytes += len(packet)
        self._held.append((now + self.delay_s, port, packet))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Give up the packets whose time has come, each with a port that it goes to: all but its own, where
        its receiver's is not known.
        """
        while self._held and self._held[0][0] <= now:
            _, source, packet = self._held.popleft()
            self._held_bytes -= len(packet)
            known = self._port_of.get(packet[VNET_HEADER_BYTES : VNET_HEADER_BYTES + MAC_BYTES])
            for port in range(self.ports) if known is None else (known,):
                if port != source:
                    yield port, packet

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next packet is due; None if none is held."""
        return max(0.0, self._held[0][0] - now) if self._held else None


# ----------------------------------------------------------------------------
# Its process, in the bridge's namespace: `python -m benchmarks.rivals.delay MS PORT...`


def main() -> None:
    delay_ms, *names = sys.argv[1:]
    ports = [_open(name) for name in names]
    switch = Switch(len(ports), float(delay_ms) / 1e3)
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select(ports, (), (), switch.wait_s(time.monotonic()))
        for port in readable:
            for packet in _read(port):
                switch.take(time.monotonic(), ports.index(port), packet)
        for number, packet in switch.due(time.monotonic()):
            with contextlib.suppress(OSError):  # the port's shaper has no room, or the host is gone: lost
                ports[number].send(packet)


def _open(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # nothing until it is bound to its port
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    port.bind((name, ETH_P_ALL))
    port.setblocking(False)
    return port


def _read(port: socket.socket) -> Iterable[bytes]:
    with contextlib.suppress(BlockingIOError):
        for _ in range(READS_MAX):
            yield port.recv(PACKET_BYTES_MAX)


# ----------------------------------------------------------------------------
# The LAN with it.


class DelayedLan(Lan):
    """A Lan in which a packet needs `delay_ms` from host to host, beside the time of its links."""

    def __init__(self, hosts: int, *, delay_ms: float, rate: str, burst: str = "64kb") -> None:
        super().__init__(hosts, rate=rate, burst=burst)
        self._delay_ms = delay_ms
        self._switch: subprocess.Popen[bytes] | None = None

    def _build(self) -> None:
        super()._build()
        ports = [f"v{number}" for number in range(len(self.hosts))]
        for port in ports:
            command("ip", "-n", self._bridge, "link", "set", port, "nomaster")
        # The network is no host: it may take a processor whenever a packet is due.
        prefix = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self._bridge, "nice", "-n", "-10"]
        module = [sys.executable, "-m", "benchmarks.rivals.delay", str(self._delay_ms), *ports]
        self._switch = subprocess.Popen(
            [*prefix, *module], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == b"ready\n", "the switch does not run"

    def _remove(self) -> None:
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
            assert self._switch.stdout is not None
            self._switch.stdout.close()
        super()._remove()


if __name__ == "__main__":
    main()
