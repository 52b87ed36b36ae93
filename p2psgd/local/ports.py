"""Free loopback ports for daemons that are only about to start.

They come from below the kernel's range for outgoing connections: a port inside that range may be taken by an
outgoing connection before its daemon listens, or worse, a daemon that dials a port where nobody listens yet
may by chance be given that very port as its own end, and is then connected with itself.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from p2psgd.errors import ExitCode, UsageError

LOOPBACK = "127.0.0.1"
PORT_LOW = 10_000
OUTGOING_DEFAULT_LOW = 32_768  # Linux's default when the file below cannot be read
OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return `count` distinct loopback ports on which nobody listens now; UsageError if there are fewer."""
    candidates = list(range(PORT_LOW, _outgoing_low()))
    random.SystemRandom().shuffle(candidates)  # so that two runs started together hardly ever try the same
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    if len(found) < count:
        raise UsageError(
            f"only {len(found)} of {count} loopback ports from {PORT_LOW} up are free: end other servers",
            ExitCode.TEMPORARY,
        )
    return found


def _outgoing_low() -> int:
    try:
        low = int(OUTGOING_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = OUTGOING_DEFAULT_LOW
    return low if low > PORT_LOW + 1_000 else 65_536  # a range that leaves nothing below it is no help


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
