"""TLS or plaintext? The first three bytes that a peer sends tell, so that a node that was started without TLS
and one with it can say to each other what is wrong.

A TLS record begins with its type and the version 3.x. Read as the length of a frame these bytes are more than
64 KiB, which is no length that a greeting has.
"""

from __future__ import annotations

from typing import Final

FIRST_BYTES: Final = 3
_ALERT, _HANDSHAKE = 21, 22


def is_tls(first: bytes | bytearray) -> bool:
    """Of the first three bytes."""
    kind, major, minor = first
    return kind in (_ALERT, _HANDSHAKE) and major == 3 and 1 <= minor <= 4
