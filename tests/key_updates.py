"""What the ssl module cannot do and other implementations of TLS can: ask for new keys (RFC 8446, 4.6.3).

OpenSSL does it through a pointer in the middle of an object of CPython's.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

import pytest

from p2psgd.net.tls_session import Session

_POINTER_AT: Final = 24  # PySSLSocket.ssl, after the object's head and its socket
_REQUESTED: Final = 1


def ask_for_new_keys(session: Session) -> None:
    """The other side must answer with new keys of its own, once for each time that it is asked."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    libraries = {line.split()[-1] for line in lines if "libssl" in line}
    if len(libraries) != 1:
        pytest.skip("OpenSSL cannot be told apart in this process")
    library = ctypes.CDLL(libraries.pop())
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
    pointer = ctypes.c_void_p.from_address(id(session._object._sslobj) + _POINTER_AT).value  # type: ignore[attr-defined]
    assert library.SSL_key_update(pointer, _REQUESTED) == 1
    assert library.SSL_do_handshake(pointer) == 1
