"""What became of dialling an address, in a form that checks can judge. Pure but for the names of errors."""

from __future__ import annotations

import enum
import errno
from typing import Final

from p2psgd.discovery.naming import UnknownNameError
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
    MUTE = "mute"  # something takes connections and says nothing: a node without a trainer yet does so
    LEFT = "left"  # a doctor was there, and ended too early


REACHED: Final = frozenset({Outcome.DOCTOR, Outcome.NODE, Outcome.ITSELF})
# Tell more than that nothing answers later, since the doctor there has ended.
TELLING: Final = frozenset({Outcome.TLS, Outcome.STRANGE, Outcome.MUTE, Outcome.LEFT})
UNANSWERED: Final = frozenset({Outcome.REFUSED, Outcome.SILENT, Outcome.AWAY})
_OF_TLS: Final = ("TLS", "handshake", "certificate", "CA")  # in the reasons of p2psgd.tls and p2psgd.net
_NO_WAY: Final = frozenset(
    {errno.ENETUNREACH, errno.ENETDOWN, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}
)


def judge_failure(error: BaseException, timeout_s: float) -> tuple[Outcome, str]:
    """Outcome and a few words for what a dial raised."""
    words = (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    match error:
        case TimeoutError() if error.errno is None:
            found = Outcome.SILENT, f"no answer within {timeout_s:g} s"
        case TimeoutError():
            found = Outcome.SILENT, "no answer"
        case ConnectionRefusedError():
            found = Outcome.REFUSED, "connection refused"
        case UnknownNameError():
            found = Outcome.UNRESOLVED, str(error)
        case PeerError(reason="no greeting"):
            found = Outcome.MUTE, "something listens there, but says nothing"
        case PeerError() if any(word in error.reason for word in _OF_TLS):
            found = Outcome.TLS, str(error)
        case PeerError():
            found = Outcome.STRANGE, str(error)
        case OSError(errno=errno.EHOSTUNREACH):
            found = Outcome.AWAY, "no such machine answers (no route to host)"
        case OSError() if error.errno in _NO_WAY:
            found = Outcome.UNREACHABLE, words
        case _:
            found = Outcome.STRANGE, f"the connection failed: {words}"
    return found
