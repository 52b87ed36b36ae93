"""A connection of a doctor: frames of the wire protocol's form on asyncio's streams.

The daemon's own connections copy less, but only speak what daemons speak. Type and length of a frame are
checked before a byte of its body is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Final

from p2psgd.doctor.messages import GREETING_SIZES, MESSAGE_SIZES
from p2psgd.errors import PeerError
from p2psgd.wire.frames import PREFIX, FrameType

READ_BYTES: Final = 256 * 1024
UNSENT_BYTES: Final = 128 * 1024  # more in the kernel would only be waited for when a measurement ends
CLOSE_TIMEOUT_S: Final = 2.0


class Stream:
    """Frames both ways; at first only those of a greeting may come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sizes: Mapping[int, int] = GREETING_SIZES
        writer.transport.set_write_buffer_limits(high=UNSENT_BYTES)
        raw = writer.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    @property
    def peer_host(self) -> str:
        """The numeric address that the other end has here."""
        name = self._writer.get_extra_info("peername")
        return str(name[0]) if name else ""

    @property
    def tls(self) -> ssl.SSLObject | None:
        """Of an encrypted connection."""
        found: ssl.SSLObject | None = self._writer.get_extra_info("ssl_object")
        return found

    def open(self) -> None:
        """Both have greeted: from here on doctors' messages come."""
        self._sizes = MESSAGE_SIZES

    async def read(self) -> tuple[int, bytes] | None:
        """Type and body of the next frame, None at the end. PeerError for one that may not come, OSError if
        the connection fails.
        """
        try:
            prefix = await self._reader.readexactly(PREFIX.size)
            length, kind = PREFIX.unpack(prefix)
            allowed = self._sizes.get(kind)
            if allowed is None or not 0 < length <= allowed:
                if prefix[0] == 0x15 and prefix[1] == 0x03:  # a TLS alert, since what we sent was none
                    raise PeerError("tls", "it speaks TLS")
                raise PeerError("frame type", f"a frame of type {kind} and {length} bytes is not allowed here")
            return kind, await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise PeerError("frame", "the connection ended within a frame") from None
            return None

    def write(self, frame: bytes) -> None:
        """Hand over a whole frame, to be sent when there is room."""
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def drain(self) -> None:
        """Wait until there is room again; OSError if the connection has failed."""
        await self._writer.drain()

    async def close(self) -> None:
        """Close after what was handed over has left, within CLOSE_TIMEOUT_S."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                self._writer.close()
                await self._writer.wait_closed()
        self._writer.transport.abort()


async def dial(
    host: str, port: int, *, tls: ssl.SSLContext | None, timeout_s: float
) -> Stream:
    """A connection; OSError or TimeoutError if there is none."""
    async with asyncio.timeout(timeout_s):
        # the name of a host says nothing here: a certificate names a node
        name = None if tls is None else ""
        pair = await asyncio.open_connection(host, port, limit=READ_BYTES, ssl=tls, server_hostname=name)
    return Stream(*pair)


async def accept(connected: socket.socket, *, tls: ssl.SSLContext | None, timeout_s: float) -> Stream:
    """The same of a connection that came; the socket is closed if it fails."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock=connected, ssl=tls)
    except BaseException:
        connected.close()
        raise
    return Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def is_greeting(kind: int) -> FrameType:
    """The greeting's frame type of that number; PeerError for a doctor's own."""
    if kind not in GREETING_SIZES:
        raise PeerError("frame order", f"a frame of type {kind} came in place of a greeting")
    return FrameType(kind)
