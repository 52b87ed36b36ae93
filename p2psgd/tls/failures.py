"""Why TLS did not come about, as a reason that is counted and a sentence for people.

In TLS 1.3 a client has finished its handshake before the server has judged its certificate. What the server
then says comes as an alert, to whatever the client reads next.
"""

from __future__ import annotations

import ssl
from typing import Final

from p2psgd.errors import PeerError
from p2psgd.tls.credentials import VerifyCode

RENEW: Final = "renew it with `p2psgd ca issue --renew`"
ONE_CA: Final = "issue the certificates of all nodes from one CA"
START: Final = "start it with --tls DIR"

_VERIFIED: Final[dict[int, tuple[str, str]]] = {
    VerifyCode.EXPIRED: ("expired certificate", f"its certificate has expired: {RENEW}"),
    VerifyCode.NOT_YET_VALID: (
        "certificate not yet valid",
        "its certificate is not valid yet: set the clocks of both machines",
    ),
    VerifyCode.WRONG_PURPOSE: (
        "certificate",
        "its certificate is not made for nodes: `p2psgd ca issue` makes those that are",
    ),
}
_WRONG_CA: Final = (
    "wrong CA",
    f"its certificate is not of this run's CA, but of another run's or an older one's: {ONE_CA}",
)
_TOLD: Final = {  # by the peer's alert
    "TLSV1_ALERT_UNKNOWN_CA": ("wrong CA", f"it does not know the CA of this node's certificate: {ONE_CA}"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "expired certificate",
        f"it says that this node's certificate has expired: {RENEW}",
    ),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("no certificate", "it wants a certificate of this node"),
    "TLSV1_ALERT_PROTOCOL_VERSION": ("TLS version", "it does not speak TLS 1.3"),
}
_FOUND: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("no certificate", f"it shows no certificate: {START}"),
    "UNSUPPORTED_PROTOCOL": ("TLS version", "it does not speak TLS 1.3, and nothing older is accepted"),
}


def refusal(error: ssl.SSLError) -> PeerError:
    """What to count it under, and what to tell people."""
    name = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return PeerError(*_VERIFIED.get(error.verify_code, _WRONG_CA))
    if name in _TOLD:
        reason, words = _TOLD[name]
        return PeerError(f"rejected by peer: {reason}", words)
    if "_ALERT_" in name and "CERTIFICATE" in name:
        words = "it does not accept this node's certificate: its log says why; are the clocks of both right?"
        return PeerError("rejected by peer: certificate", words)
    if "_ALERT_" in name:
        what = name.partition("_ALERT_")[2].replace("_", " ").lower()
        return PeerError("rejected by peer: TLS", f"it ended TLS: {what}")
    if name in _FOUND:
        return PeerError(*_FOUND[name])
    what = name.replace("_", " ").lower() or "an error without a name"
    return PeerError("TLS", f"its TLS cannot be understood: {what}")
