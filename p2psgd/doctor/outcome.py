"""What became of dialling an address, in a form that checks can judge. Pure but for the names of errors."""

from __future__ import annotations

import enum
import errno
import socket
import ssl
from typing import Final

from p2psgd.errors import PeerError


class Outcome(enum.StrEnum):
    """Of the last dial of an address."""

    UNTRIED = "untried"
    DOCTOR = "doctor"  # a doctor answers
    NODE = "node"  # a daemon does
    ITSELF = "itself"  # it is this doctor
    REFUSED = "refused"  # nothing listens there
    SILENT = "silent"  # no answer at all
    UNREACHABLE = "unreachable"  # the network says that there is no way
    UNRESOLVED = "unresolved"  # a name that is none
    TLS = "tls"  # one side does not accept the other's certificate, or speaks no TLS
    STRANGE = "strange"  # something answers that is neither doctor nor daemon of this version


REACHED: Final = frozenset({Outcome.DOCTOR, Outcome.NODE, Outcome.ITSELF})
_NO_WAY: Final = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}
)


def judge_failure(error: BaseException, timeout_s: float) -> tuple[Outcome, str]:
    """Outcome and a few words for what a dial raised."""
    match error:
        case TimeoutError():
            if getattr(error, "errno", None) == errno.ETIMEDOUT:
                return Outcome.SILENT, "no answer"
            return Outcome.SILENT, f"no answer within {timeout_s:g} s"
        case ConnectionRefusedError():
            return Outcome.REFUSED, "connection refused"
        case socket.gaierror():
            return Outcome.UNRESOLVED, f"the name does not resolve: {(error.strerror or 'unknown').lower()}"
        case UnicodeError():
            return Outcome.UNRESOLVED, "the name is none that DNS knows"
        case ssl.SSLCertVerificationError():
            return Outcome.TLS, f"its certificate is not accepted here: {error.verify_message.lower()}"
        case ssl.SSLError():
            return Outcome.TLS, f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
        case PeerError(reason="tls"):
            return Outcome.TLS, str(error)
        case PeerError(reason="protocol"):
            return Outcome.STRANGE, str(error)
        case PeerError():
            return Outcome.STRANGE, f"what answers there is no p2psgd of this version: {error}"
        case OSError() if error.errno in _NO_WAY:
            return Outcome.UNREACHABLE, (error.strerror or "unreachable").lower()
        case _:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return Outcome.STRANGE, f"the connection failed: {words.lower()}"
