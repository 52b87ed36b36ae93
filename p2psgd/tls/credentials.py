"""A node's TLS directory, loaded: its certificate, its key and the CA of its run, ready for use.

TLS 1.3 only, and both sides show a certificate. Verification is by the CA and by the node's id, which the
certificate holds and HELLO repeats: a run has one private CA, and addresses change. So host names are not
checked, which is right only because the id is: whoever uses these contexts compares `peer_of` with HELLO. No
option turns either check off.

A session ticket would let a peer come back without being verified: the server gives none. The standard
library is enough for all of this; making certificates is `authority`'s.
"""

from __future__ import annotations

import enum
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from p2psgd.errors import ExitCode, PeerError, UsageError, cannot
from p2psgd.tls.key_file import check_key_file, missing
from p2psgd.tls.names import CA_FILE, CERTIFICATE_FILE, KEY_FILE, CertifiedPeer, node_of


class VerifyCode(enum.IntEnum):
    """OpenSSL's X509_V_ERR numbers, those that are told apart."""

    NOT_YET_VALID = 9
    EXPIRED = 10
    WRONG_PURPOSE = 26


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the files held."""

    server_context: ssl.SSLContext
    client_context: ssl.SSLContext
    own: CertifiedPeer
    run: str
    expires: datetime


class Credentials:
    """One node's. `reload` changes what all of it says for new sessions; those that are there go on."""

    def __init__(self, directory: Path) -> None:
        """UsageError that says what is wrong with which file."""
        self.directory = directory
        self._loaded = _load(directory)

    @classmethod
    def load(cls, directory: Path) -> Credentials:
        """The credentials in this directory; UsageError that says what is wrong with which file."""
        return cls(directory)

    def reload(self) -> None:
        """Read the files again; UsageError if they cannot be used, and then the old ones stay in force."""
        loaded = _load(self.directory)
        if loaded.own.node != self._loaded.own.node:
            raise UsageError(
                f"{self.directory} now holds the certificate of another node ({loaded.own.name}, id "
                f"{loaded.own.node:016x}), and this one stays {self._loaded.own.node:016x}",
                ExitCode.CONFIGURATION,
            )
        self._loaded = loaded

    def context(self, *, dialled: bool) -> ssl.SSLContext:
        """For the next connection, ours or a peer's."""
        return self._loaded.client_context if dialled else self._loaded.server_context

    @property
    def node(self) -> int:
        """The id that this node's certificate gives it."""
        return self._loaded.own.node

    @property
    def name(self) -> str:
        """The name that it gives it."""
        return self._loaded.own.name

    @property
    def run(self) -> str:
        """What people call the run that the CA was made for."""
        return self._loaded.run

    @property
    def expires(self) -> datetime:
        """When this node's certificate, or the CA's if that is earlier, ends."""
        return self._loaded.expires


def peer_of(ssl_object: ssl.SSLObject | ssl.SSLSocket) -> CertifiedPeer:
    """Whom the other side's certificate names, once the handshake is done; PeerError if it names no node."""
    certificate = ssl_object.getpeercert()
    peer = None if certificate is None else _named_in(certificate)
    if peer is None:
        raise PeerError("certificate", "its certificate is of this run's CA, but names no node")
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


def _seen_by_itself(server: ssl.SSLContext, client: ssl.SSLContext, path: Path) -> dict[str, Any]:
    """Shake hands with oneself, in memory: what a peer would refuse is found now, and what it would see is
    returned.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [dialling, answering]
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
                "and if `p2psgd ca check` says that it has not, set this machine's clock"
            )
        case VerifyCode.NOT_YET_VALID:
            return f"the certificate in {path} is not valid yet: set this machine's clock"
        case _:
            return (
                f"{path} was not issued by the CA in {path.with_name(CA_FILE)} ({error.verify_message}): "
                "take both from the same `p2psgd ca issue`"
            )


def _named_in(certificate: dict[str, Any]) -> CertifiedPeer | None:
    """As `getpeercert` tells it; None if it names no node, or two."""
    nodes = [node_of(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    name = _common_name(certificate.get("subject", ()))
    if len(nodes) != 1 or nodes[0] is None or not name:
        return None
    return CertifiedPeer(nodes[0], name)


def _common_name(subject: Any) -> str:
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
