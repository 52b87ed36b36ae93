"""What the kernel knows of a connection's round-trip time, without asking anybody: tcp(7), TCP_INFO."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

RTT_AT: Final = 68  # tcpi_rtt, microseconds, in struct tcp_info of linux/tcp.h


def round_trip_ms(transport: asyncio.BaseTransport | None) -> float | None:
    """Smoothed, in milliseconds; None if there is no connection, or the kernel does not tell."""
    connected = None if transport is None else transport.get_extra_info("socket")
    if connected is None:
        return None
    try:
        told = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RTT_AT + 4)
    except OSError:
        return None
    if len(told) < RTT_AT + 4:
        return None
    (rtt_us,) = struct.unpack_from("=I", told, RTT_AT)
    return rtt_us / 1000 if rtt_us else None
