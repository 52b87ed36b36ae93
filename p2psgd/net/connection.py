"""A TCP connection that carries frames, its round-trip time, and its first bytes: TLS or plaintext."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import sys
from typing import Final, Protocol, cast

from p2psgd.net.address import Address
from p2psgd.net.tls import CertifiedPeer
from p2psgd.net.tls_session import Session
from p2psgd.wire.frames import Body, FrameReader, FrameType
from p2psgd.wire.messages import plain_ip
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# The kernel's measure of a connection's round-trip time, which costs no message: tcp(7), TCP_INFO.


RTT_AT: Final = 68  # tcpi_rtt, microseconds, in struct tcp_info of linux/tcp.h


def round_trip_ms(transport: asyncio.BaseTransport | None) -> float | None:
    """Return the smoothed round-trip time in milliseconds; None if there is no connection, or the kernel does
    not know it.
    """
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


# ----------------------------------------------------------------------------
# What was written to a connection and has not left this machine: tcp(7), SIOCOUTQNSD of linux/sockios.h.


UNSENT: Final = 0x894B


def unsent_bytes(transport: asyncio.Transport | None) -> int:
    """Return how many bytes the transport and the kernel hold that were never sent; 0 without a connection,
    or of the kernel's where it does not tell.
    """
    connected = None if transport is None else transport.get_extra_info("socket")
    if transport is None or connected is None:
        return 0
    told = bytearray(4)
    with contextlib.suppress(OSError, ValueError):  # or closed by now
        fcntl.ioctl(connected.fileno(), UNSENT, told)
    return transport.get_write_buffer_size() + int.from_bytes(told, sys.byteorder)


# ----------------------------------------------------------------------------
# TLS or plaintext? The first three bytes that a peer sends decide, so that a node without TLS and a node with
# it can report to each other what is wrong.
#
# A TLS record begins with its type and the version 3.x. Read as the length of a frame these bytes are more
# than 64 KiB, which a greeting never has.


FIRST_BYTES: Final = 3
_ALERT, _HANDSHAKE = 21, 22


def is_tls(first: bytes | bytearray) -> bool:
    """Return whether the first three bytes of a connection begin a TLS record."""
    kind, major, minor = first
    return kind in (_ALERT, _HANDSHAKE) and major == 3 and 1 <= minor <= 4


# ----------------------------------------------------------------------------
# One TCP connection that carries frames: bytes in, checked frames out, and back-pressure both ways.
#
# A BufferedProtocol, because asyncio's streams copy every byte twice and cap at 64 KiB. It knows nothing of
# peers or updates: the connection's owner decides what a frame means. The transport's buffer is bounded by
# its high-water mark plus what the owner sends before it looks at `writable`. With a TLS context all of it is
# encrypted, and frames begin when the handshake is done; nothing is allocated for a peer that connects and
# sends nothing.


HIGH_WATER_BYTES = 1024 * 1024
LOW_WATER_BYTES = 256 * 1024


class ConnectionOwner(Protocol):
    """The owner of a connection, which decides what its frames mean."""

    def connection_made(self, connection: Connection) -> None: ...
    def frame_received(self, connection: Connection, frame_type: FrameType, body: Body) -> None: ...
    def peer_failed(self, connection: Connection, error: PeerError) -> None: ...
    def connection_drained(self, connection: Connection) -> None: ...
    def connection_lost(self, connection: Connection, words: str) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """A connection to a peer, dialled by this node (`dialled`) or by the peer; plaintext if `tls` is None."""

    def __init__(
        self,
        owner: ConnectionOwner,
        *,
        dialled: bool,
        user_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.dialled = dialled
        self.address = "?"  # for people
        self.remote: Address | None = None
        self.bytes_received = 0
        self.bytes_sent = 0
        self.writable = True
        self.closing = False
        self.close_words = ""
        self._owner = owner
        self._user_timeout_s = user_timeout_s
        self.reader = FrameReader()
        self._context = tls
        self._session: Session | None = None
        self._early: list[bytes] = []  # HELLO, until the handshake is done
        self._first = bytearray(FIRST_BYTES)
        self._first_filled = 0
        self._transport: asyncio.Transport | None = None
        self._drain_wanted = False
        self._finished = False

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        name = transport.get_extra_info("peername")
        if name:
            self.remote = Address(str(plain_ip(name[0])), name[1])
            self.address = str(self.remote)
        set_socket_options(transport.get_extra_info("socket"), user_timeout_s=self._user_timeout_s)
        self._owner.connection_made(self)
        if self._context is not None and self.dialled and not self.closing:
            self._session = Session(self._context, dialled=True)
            self._session.shake_hands()
            self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._first_filled < FIRST_BYTES:
            return memoryview(self._first)[self._first_filled :]
        if self._session is not None:
            return self._session.get_buffer()
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_received += nbytes
        try:
            if self._first_filled < FIRST_BYTES:
                self._first_filled += nbytes
                if self._first_filled == FIRST_BYTES:
                    self._begin()
            elif self._session is not None:
                self._session.received(nbytes)
                self._decrypt(self._session)
            else:
                self.reader.received(nbytes)
                self._hand_out()
        except PeerError as error:
            self._flush()  # the alert, if there is one
            self._owner.peer_failed(self, error)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._drained_if_wanted()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        words = self.close_words or _describe_end(exc)
        if self.shaking_hands and not self.close_words:
            words += ", in the middle of the TLS handshake"
        self._owner.connection_lost(self, words)

    # -- TLS

    @property
    def certified(self) -> CertifiedPeer | None:
        """Return the node that the peer's certificate names; None in plaintext, or while the handshake is not
        done.
        """
        return None if self._session is None else self._session.peer

    @property
    def shaking_hands(self) -> bool:
        """Return whether the TLS handshake has begun and is not done."""
        return self._session is not None and self._session.peer is None

    def _begin(self) -> None:
        """Decide from the first bytes, which are complete, whether the peer speaks TLS, and process them."""
        if self._context is None:
            if is_tls(self._first):
                words = "it speaks TLS and this node does not: start both with --tls DIR, or neither"
                raise PeerError(RejectCode.TLS_ON_PLAINTEXT_PORT, words)
            self.reader.get_buffer()[:FIRST_BYTES] = self._first
            self.reader.received(FIRST_BYTES)
            self._hand_out()
            return
        if not is_tls(self._first):
            self._context, self._session = None, None  # so that it can read why
            words = "it speaks plaintext and this node TLS: start both with --tls DIR"
            raise PeerError(RejectCode.PLAINTEXT_ON_TLS_PORT, words)
        if self._session is None:
            self._session = Session(self._context, dialled=False)
        self._session.receive(self._first)
        self._decrypt(self._session)

    def _decrypt(self, session: Session) -> None:
        if session.peer is None:
            self._flush()
            return
        for frame in self._early:
            session.encrypt(frame)
        self._early.clear()
        while not self.closing and (count := session.read_into(self.reader.get_buffer())):
            self.reader.received(count)
            self._hand_out()
        self._flush()
        if session.ended and self._transport is not None:
            self._transport.close()

    def _hand_out(self) -> None:
        while not self.closing and (frame := self.reader.next_frame()) is not None:
            self._owner.frame_received(self, *frame)

    def _flush(self) -> None:
        """Send what TLS has ready, unless the end was sent: after that nothing may be."""
        if self._session is None or self._transport is None or self._finished:
            return
        if data := self._session.outgoing.read():
            self.bytes_sent += len(data)
            self._transport.write(data)

    # -- the owner's side

    @property
    def host(self) -> str:
        """Return the peer's IP address; empty if it is not known."""
        return "" if self.remote is None else self.remote.host

    @property
    def round_trip_ms(self) -> float | None:
        """Return the smoothed round-trip time to the peer, in milliseconds, as the kernel measures it; None
        if it does not know it.
        """
        return round_trip_ms(self._transport)

    @property
    def unsent_bytes(self) -> int:
        """Return how much of what was sent has not left this machine, as it waits for the network or the
        peer.
        """
        return unsent_bytes(self._transport)

    def send(self, frame: bytes) -> None:
        """Hand over one whole frame; nothing is sent on a connection that is closing or finished."""
        if self._transport is None or self.closing or self._finished:
            return
        if self._context is None:
            self.bytes_sent += len(frame)
            self._transport.write(frame)
        elif self._session is None or self._session.peer is None:
            self._early.append(frame)
        else:
            self._session.encrypt(frame)
            self._flush()

    def send_floats(self, head: bytes, numbers: memoryview) -> None:
        """Hand over one whole frame in two parts, the second without a copy of it (on uvloop, which keeps the
        memory until it was sent or the connection is gone; asyncio's own loop copies what it cannot send at
        once; TLS copies all of it).
        """
        if self._transport is None or self.closing or self._finished:
            return
        if self._session is None:
            self.bytes_sent += len(head) + numbers.nbytes
            self._transport.writelines([head, numbers])
        else:
            self._session.encrypt(head)
            self._session.encrypt(numbers)
            self._flush()

    def report_drained(self) -> None:
        """Call the owner's connection_drained once what was sent is below the low-water mark, at the next
        turn at the earliest.
        """
        self._drain_wanted = True
        asyncio.get_running_loop().call_soon(self._drained_if_wanted)

    def close(self, words: str) -> None:
        """Close after what was handed over has been sent, or when the transport gives up."""
        if not self.closing:
            self.closing, self.close_words = True, words
            if self._transport is not None:
                self._transport.close()

    def finish(self, words: str) -> None:
        """Send no more; the peer, once it has read everything, closes.

        Closing at once would reset the connection if the peer has something under way to us, and the reset
        would destroy what it has not read yet.
        """
        if not self.closing and self._transport is not None:
            self.close_words, self._finished = words, True
            with contextlib.suppress(RuntimeError, OSError):  # it has ended, which is about to be told
                self._transport.write_eof()

    def abort(self, words: str) -> None:
        """Close at once; what was not sent yet is lost."""
        if not self.close_words:
            self.close_words = words
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def _drained_if_wanted(self) -> None:
        if self._drain_wanted and self.writable and not self.closing:
            self._drain_wanted = False
            self._owner.connection_drained(self)


def set_socket_options(connected: socket.socket | None, *, user_timeout_s: float) -> None:
    """Disable Nagle's delay, and have the kernel give a connection up when nothing was acknowledged for
    `user_timeout_s`.
    """
    if connected is None:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    third_s = max(1, int(user_timeout_s / 3))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout_s * 1000))


def _describe_end(error: Exception | None) -> str:
    """Describe why a connection ended that this node did not end."""
    if error is None:
        return "closed by the peer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
