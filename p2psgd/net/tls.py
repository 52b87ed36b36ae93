"""Mutual TLS of nodes: credentials, key files, names in certificates, failures and expiry."""

from __future__ import annotations

import enum
import hashlib
import os
import re
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from p2psgd.base.errors import ExitCode, UsageError, cannot
from p2psgd.wire.reject import PeerError, RejectCode

# ----------------------------------------------------------------------------
# Mutual TLS between the nodes of a run: its certificate authority, a node's certificate and key, and the
# sessions that are made with them.


# ----------------------------------------------------------------------------
# Files that hold a private key: made for their owner alone, never in place of another, and refused if others
# can read them.


def write_key(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone can read, whatever the umask; OSError if there is one already.

    If it cannot be written to its end, it is gone again.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def missing(path: Path) -> UsageError:
    """Build the error for a file of a TLS directory that is not there."""
    words = f"there is no {path}: `p2psgd ca issue` makes a directory with all that a node needs"
    return UsageError(words, ExitCode.CONFIGURATION)


def check_key_file(path: Path) -> None:
    """Raise UsageError unless this is a file of this user or of root that others cannot touch.

    PostgreSQL's rule: the group may read a file of root's (systemd gives credentials to a service by an
    access control list, which shows as the group's bits); of a file of one's own only the owner may.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise cannot(f"read {path}", error) from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is no file", ExitCode.CONFIGURATION)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{path} belongs to user {found.st_uid}, who can read it: `chown {os.geteuid()} {path}`",
            ExitCode.PERMISSION,
        )
    if mode & (0o037 if found.st_uid == 0 else 0o077):
        raise UsageError(
            f"others can read or change {path} (its mode is {mode:04o}): `chmod 600 {path}`, and if they may "
            "have read it, issue the node a new one with `p2psgd ca issue --renew`",
            ExitCode.PERMISSION,
        )


# ----------------------------------------------------------------------------
# When to say that a certificate ends: from 30 days before, once a day at most. Pure: time is passed in.


WARNED_DAYS: Final = 30  # long enough for a person who looks at the logs once a month
_AGAIN: Final = timedelta(days=1)


class ExpiryWatch:
    """A watch on the end of this node's certificate, one certificate at a time."""

    def __init__(self) -> None:
        self._said: tuple[datetime, datetime] | None = None  # of which end, and when

    def due(self, expires: datetime, now: datetime) -> str:
        """Return the warning that is due now, both times with their zone; empty: none."""
        if expires - now > timedelta(days=WARNED_DAYS):
            return ""
        if self._said is not None and self._said[0] == expires and now - self._said[1] < _AGAIN:
            return ""
        self._said = expires, now
        return describe_expiry(expires, now)


def describe_expiry(expires: datetime, now: datetime) -> str:
    """Describe in one sentence when the certificate expires or has expired; empty while there is time."""
    left = expires - now
    if left > timedelta(days=WARNED_DAYS):
        return ""
    when = f"{expires:%Y-%m-%d %H:%M} UTC"
    advice = "`p2psgd ca issue --renew` makes a new one; what has a copy, as a service has, needs a restart"
    if left < timedelta(0):
        return f"this node's certificate has expired on {when}, and peers refuse new links to it: {advice}"
    days = left.days
    return f"this node's certificate expires on {when}, in {days} day{'' if days == 1 else 's'}: {advice}"


# ----------------------------------------------------------------------------
# What the files of a TLS directory are called, and how a certificate names its node.
#
# The subject's common name is what people call the node; the subjectAltName holds one URI, `p2psgd:node:`
# and the node's id in 16 hexadecimal digits. The id is what is trusted. A CA that cannot draw an id writes
# `p2psgd:name:` and a name that it gives to one node alone; the id follows from that.


CA_FILE: Final = "ca.pem"
CERTIFICATE_FILE: Final = "node.pem"
KEY_FILE: Final = "node.key"
URI_PREFIX: Final = "p2psgd:node:"
URI_OF_NAME: Final = "p2psgd:name:"

_URI: Final = re.compile(re.escape(URI_PREFIX) + "([0-9a-f]{16})")
_URI_OF_NAME: Final = re.compile(re.escape(URI_OF_NAME) + "[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class CertifiedPeer:
    """The node that a certificate of the run's CA names."""

    node: int
    name: str


def uri_of(node: int) -> str:
    """Return the URI that holds a node's id in a certificate."""
    return f"{URI_PREFIX}{node:016x}"


def node_of(uri: str) -> int | None:
    """Return the id in such a URI, or that of the name in it; None if it is another."""
    if _URI_OF_NAME.fullmatch(uri):
        return int.from_bytes(hashlib.sha256(uri.encode()).digest()[:8], "big")
    match = _URI.fullmatch(uri)
    return int(match[1], 16) if match else None


# ----------------------------------------------------------------------------
# A node's TLS directory, loaded: its certificate, its key and the CA of its run, ready for use.
#
# TLS 1.3 only, and both sides show a certificate. Verification is by the CA and by the node's id, which the
# certificate holds and HELLO repeats: a run has one private CA, and addresses change. So host names are not
# checked, which is right only because the id is: code that uses these contexts compares `peer_of` with HELLO.
# No option turns either check off.
#
# A session ticket would let a peer come back without being verified: the server gives none. The standard
# library is enough for all of this; making certificates is `cli.ca_authority`'s.


class VerifyCode(enum.IntEnum):
    """The X509_V_ERR numbers of OpenSSL that have a message of their own."""

    NOT_YET_VALID = 9
    EXPIRED = 10
    WRONG_PURPOSE = 26


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The content of the files of a TLS directory."""

    server_context: ssl.SSLContext
    client_context: ssl.SSLContext
    own: CertifiedPeer
    run: str
    expires: datetime


class Credentials:
    """The credentials of one node. `reload` replaces them for new sessions; existing sessions go on. `taken`:
    the stamps of the files when they were read last, whether they could be used or not.
    """

    def __init__(self, directory: Path) -> None:
        """Load the directory; UsageError that says what is wrong with which file."""
        self.directory = directory
        self.taken = self.stamps()  # before what is read: a change meanwhile is seen later
        self._loaded = _load(directory)

    @classmethod
    def load(cls, directory: Path) -> Credentials:
        """Load the credentials in this directory; UsageError that says what is wrong with which file."""
        return cls(directory)

    def reload(self) -> None:
        """Read the files again; UsageError if they cannot be used, and then the old ones stay in force."""
        self.taken = self.stamps()
        loaded = _load(self.directory)
        if loaded.own.node != self._loaded.own.node:
            raise UsageError(
                f"{self.directory} now holds the certificate of another node ({loaded.own.name}, id "
                f"{loaded.own.node:016x}), and this one stays {self._loaded.own.node:016x}",
                ExitCode.CONFIGURATION,
            )
        self._loaded = loaded

    def stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return what changes when a file of the directory does: inode, size and time of each, None for one
        that cannot be seen.
        """
        return tuple(_stamp(self.directory / name) for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))

    def context(self, *, dialled: bool) -> ssl.SSLContext:
        """Return the TLS context for the next connection, dialled by this node or by a peer."""
        return self._loaded.client_context if dialled else self._loaded.server_context

    @property
    def node(self) -> int:
        """Return the id that this node's certificate gives it."""
        return self._loaded.own.node

    @property
    def name(self) -> str:
        """Return the name that this node's certificate gives it."""
        return self._loaded.own.name

    @property
    def run(self) -> str:
        """Return the name for people of the run that the CA was made for."""
        return self._loaded.run

    @property
    def expires(self) -> datetime:
        """Return when this node's certificate, or the CA's if that is earlier, ends."""
        return self._loaded.expires


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def peer_of(ssl_object: ssl.SSLObject | ssl.SSLSocket) -> CertifiedPeer:
    """Return the node that the other side's certificate names, once the handshake is done; PeerError if it
    names no node.
    """
    certificate = ssl_object.getpeercert()
    peer = None if certificate is None else _named_in(certificate)
    if peer is None:
        raise PeerError(
            RejectCode.TLS, "its certificate is of this run's CA, but names no node", label="certificate"
        )
    return peer


def _load(directory: Path) -> _Loaded:
    ca, certificate, key = (directory / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))
    for path in (ca, certificate):
        _check_readable(path)
    check_key_file(key)
    server, client = (ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    client.check_hostname = False  # the id is checked instead: see above
    server.num_tickets = 0
    for context in (server, client):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        _fill(context, ca, certificate, key)
    seen = _seen_by_itself(server, client, certificate)
    own = _named_in(seen)
    if own is None:
        raise UsageError(
            f"{certificate} names no node of p2psgd: `p2psgd ca issue` makes certificates that do",
            ExitCode.CONFIGURATION,
        )
    issuers = [held for held in client.get_ca_certs() if held["subject"] == seen["issuer"]]
    ends = [str(certificate["notAfter"]) for certificate in (seen, *issuers)]
    expires = datetime.fromtimestamp(min(map(ssl.cert_time_to_seconds, ends)), UTC)
    return _Loaded(server, client, own, _common_name(seen["issuer"]) or "?", expires)


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise cannot(f"read {path}", error) from None


def _fill(context: ssl.SSLContext, ca: Path, certificate: Path, key: Path) -> None:
    def password() -> str:
        raise UsageError(f"{key} is encrypted: give the daemon one that is not", ExitCode.CONFIGURATION)

    try:
        context.load_verify_locations(ca)
    except OSError:
        raise UsageError(f"{ca} holds no certificate in PEM form", ExitCode.CONFIGURATION) from None
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        words = f"{certificate} or {key} is not in PEM form, or damaged"
        if error.reason == "KEY_VALUES_MISMATCH":
            words = f"{key} does not belong to {certificate}: take both from the same `p2psgd ca issue`"
        raise UsageError(words, ExitCode.CONFIGURATION) from None
    except OSError as error:
        raise cannot(f"read {certificate} or {key}", error) from None


Certificate = dict[str, Any]  # as the ssl module describes one


def _seen_by_itself(server: ssl.SSLContext, client: ssl.SSLContext, path: Path) -> Certificate:
    """Shake hands with oneself, in memory, and return the certificate that a peer would see: what a peer
    would refuse is found now.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialer = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [dialer, answering]
    try:
        while waiting:
            for end in tuple(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLCertVerificationError as error:
        raise UsageError(_own_fault(path, error), ExitCode.CONFIGURATION) from None
    except ssl.SSLError as error:
        words = f"{path} is of no use for TLS 1.3 ({error.reason or error})"
        raise UsageError(words, ExitCode.CONFIGURATION) from None
    return answering.getpeercert() or {}


def _own_fault(path: Path, error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case VerifyCode.EXPIRED:
            return (
                f"the certificate in {path} or its CA has expired: renew it with `p2psgd ca issue --renew`, "
                f"and if `openssl x509 -noout -dates -in {path}` says that it has not, set this machine's "
                "clock"
            )
        case VerifyCode.NOT_YET_VALID:
            return f"the certificate in {path} is not valid yet: set this machine's clock"
        case _:
            return (
                f"{path} was not issued by the CA in {path.with_name(CA_FILE)} ({error.verify_message}): "
                "take both from the same `p2psgd ca issue`"
            )


def _named_in(certificate: Certificate) -> CertifiedPeer | None:
    """Return the node named in a certificate as `getpeercert` gives it; None if it names no node, or two."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    name = _common_name(certificate.get("subject", ()))
    nodes = [node_of(uri) for uri in uris]
    if len(nodes) != 1 or nodes[0] is None or not name:
        return None
    if not uris[0].startswith(URI_PREFIX) and uris[0] != URI_OF_NAME + name:
        return None
    return CertifiedPeer(nodes[0], name)


def _common_name(subject: Any) -> str:
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""


# ----------------------------------------------------------------------------
# Why TLS failed, as a reason that is counted and a sentence for people.
#
# In TLS 1.3 a client has finished its handshake before the server has judged its certificate. What the server
# then says comes as an alert, to whatever the client reads next.


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
    """Translate an SSL error into the reason to count it under, and a sentence for people."""
    name = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        label, words = _VERIFIED.get(error.verify_code, _WRONG_CA)
        return PeerError(RejectCode.TLS, words, label=label)
    if name in _TOLD:
        label, words = _TOLD[name]
        return PeerError(RejectCode.TLS, words, label=f"rejected by peer: {label}")
    if "_ALERT_" in name and "CERTIFICATE" in name:
        words = "it does not accept this node's certificate: its log says why; are the clocks of both right?"
        return PeerError(RejectCode.TLS, words, label="rejected by peer: certificate")
    if "_ALERT_" in name:
        what = name.partition("_ALERT_")[2].replace("_", " ").lower()
        return PeerError(RejectCode.TLS, f"it ended TLS: {what}", label="rejected by peer: TLS")
    if name in _FOUND:
        label, words = _FOUND[name]
        return PeerError(RejectCode.TLS, words, label=label)
    what = name.replace("_", " ").lower() or "an error without a name"
    return PeerError(RejectCode.TLS, f"its TLS cannot be understood: {what}")
