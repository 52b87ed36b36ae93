"""What became of dialling an address, in a form that checks can judge. Pure but for the names of errors."""

from __future__ import annotations

import enum
import errno
import socket
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
    AWAY = "away"  # the network finds no such machine
    UNREACHABLE = "unreachable"  # this machine knows no way there
    UNRESOLVED = "unresolved"  # a name that is none
    TLS = "tls"  # one side does not accept the other's certificate, or speaks no TLS
    STRANGE = "strange"  # something answers that is neither doctor nor daemon of this version


REACHED: Final = frozenset({Outcome.DOCTOR, Outcome.NODE, Outcome.ITSELF})
_NO_WAY: Final = frozenset(
    {errno.ENETUNREACH, errno.ENETDOWN, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}
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
        case PeerError(reason="no greeting"):
            return Outcome.SILENT, f"it takes connections but says nothing: {error}"
        case PeerError() if "TLS" in error.reason or "certificate" in error.reason or "CA" in error.reason:
            return Outcome.TLS, str(error)
        case PeerError():
            return Outcome.STRANGE, str(error)
        case OSError(errno=errno.EHOSTUNREACH):
            return Outcome.AWAY, "no such machine answers (no route to host)"
        case OSError() if error.errno in _NO_WAY:
            return Outcome.UNREACHABLE, (error.strerror or "unreachable").lower()
        case _:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return Outcome.STRANGE, f"the connection failed: {words.lower()}"
