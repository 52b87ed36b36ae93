"""A TLS session without its connection: ciphertext in, plaintext out, and back.

asyncio's own TLS would do, but for three things. On both loops it closes the socket before the alert has been
sent that gives the peer the reason. It does not report to the protocol a handshake that fails. And it makes
its objects and 256 KiB of buffer for every peer that connects and says nothing. So the standard library's
SSLObject is driven here, and everything around it, caps, deadlines and accounts, is the same with TLS and
without.

There is no close_notify: frames carry their lengths and what counts is acknowledged, so an attacker that
forges an end can do no more than one that cuts a cable.
"""

from __future__ import annotations

import ssl
from typing import Final, cast

from p2psgd.net.tls import CertifiedPeer, peer_of, refusal
from p2psgd.wire.reject import PeerError, RejectCode

# All that a peer may send before its handshake is done. It needs less than 2 KiB; HELLO may follow at once.
HANDSHAKE_BYTES_MAX: Final = 8 * 1024
# What TLS itself answers on one link, to requests for new keys: a peer that asks and never reads must not
# fill the memory. An answer has some 30 bytes, and no implementation asks before some 2^24 records.
ANSWERS_BYTES_MAX: Final = 64 * 1024
# Ciphertext lies here until it is handed to OpenSSL, in the turn of the loop that received it: one place is
# enough for all connections of a process.
_RECEIVED: Final = bytearray(256 * 1024)


class Session:
    """A side of a TLS session. `peer` is the node on the other side, once the handshake is done; `failed`:
    nothing can be sent any more.
    """

    def __init__(self, context: ssl.SSLContext, *, dialled: bool) -> None:
        self.peer: CertifiedPeer | None = None
        self.failed = False
        self.ended = False  # the peer has said that it sends no more
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self.outgoing, server_side=not dialled)
        self._before = 0
        self._answered = 0

    def get_buffer(self) -> memoryview:
        """Return the memory where the transport may write next."""
        view = memoryview(_RECEIVED)
        return view if self.peer is not None else view[:HANDSHAKE_BYTES_MAX]

    def received(self, count: int) -> None:
        """Process the first `count` bytes of the last buffer handed out, which the transport has written."""
        self.receive(memoryview(_RECEIVED)[:count])

    def receive(self, ciphertext: bytes | bytearray | memoryview) -> None:
        """Process what the peer has sent, and go on with the handshake; PeerError if that fails."""
        self._incoming.write(ciphertext)
        if self.peer is None:
            self._before += len(ciphertext)
            self.shake_hands()
            if self.peer is None and self._before > HANDSHAKE_BYTES_MAX:
                self.failed = True
                words = f"more than {HANDSHAKE_BYTES_MAX} bytes came before its TLS handshake was done"
                raise PeerError(RejectCode.TLS, words, label="long handshake")

    def shake_hands(self) -> None:
        """Begin the handshake, or go on with it; PeerError if it fails, and then `outgoing` has the alert."""
        try:
            self._object.do_handshake()
            self.peer = peer_of(self._object)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.failed = True
            raise refusal(error) from None

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt up to one record into `buffer`; return the number of bytes, 0 if more must be received
        first. PeerError if the input is corrupt, is the peer's alert, or asks for new keys without end.
        """
        before = self.outgoing.pending
        count = self._read_into(buffer)
        self._answered += self.outgoing.pending - before
        if self._answered > ANSWERS_BYTES_MAX:
            raise PeerError(RejectCode.TLS, "it asks for new keys again and again")
        return count

    def _read_into(self, buffer: memoryview) -> int:
        try:
            return cast(
                int, self._object.read(len(buffer), cast(bytearray, buffer))
            )  # bytes only without a buffer
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            self.ended = True
            return 0
        except ssl.SSLError as error:
            self.failed = True
            raise refusal(error) from None

    def encrypt(self, data: bytes | memoryview) -> None:
        """Encrypt data into `outgoing`, and the memory is free again; nothing is sent on a session that has
        failed.
        """
        rest = memoryview(data).cast("B")
        try:
            while rest and not self.failed:
                rest = rest[self._object.write(rest) :]
        except ssl.SSLError:  # the peer, which hears nothing more, ends the link
            self.failed = True
