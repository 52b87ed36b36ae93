"""What is wrong with a TLS directory, or with a CA's: every finding as one sentence, for `p2psgd ca check`.

Looks at each thing by itself, with dates and names, where loading the directory as a daemon does stops at the
first fault. It asks that loading last, so that nothing passes here that a daemon refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from p2psgd.errors import UsageError
from p2psgd.tls.authority import CA_KEY_FILE, common_name, node_id_of, read_certificates
from p2psgd.tls.credentials import Credentials
from p2psgd.tls.expiry import WARNED_DAYS
from p2psgd.tls.key_file import check_key_file
from p2psgd.tls.names import CA_FILE, CERTIFICATE_FILE, KEY_FILE


@dataclass(frozen=True)
class Finding:
    """`fault`: it keeps the directory from being used."""

    words: str
    fault: bool = False


def inspect_directory(directory: Path) -> list[Finding]:
    """Of a node's TLS directory, or of a CA's if it has a CA's key; in the order of the files."""
    if (directory / CA_KEY_FILE).exists():
        return list(_inspect_authority(directory))
    return list(_inspect_node(directory))


def _inspect_authority(directory: Path) -> Iterator[Finding]:
    now = datetime.now(UTC)
    authorities, findings = _read(directory / CA_FILE, now)
    yield from findings
    yield from _inspect_key(directory / CA_KEY_FILE, authorities[:1])
    for path in sorted((directory / "issued").glob("*.pem")):
        nodes, findings = _read(path, now)
        yield from findings
        for node in nodes[:1]:
            yield from _inspect_chain(path, node, authorities)


def _inspect_node(directory: Path) -> Iterator[Finding]:
    now = datetime.now(UTC)
    authorities, findings = _read(directory / CA_FILE, now)
    yield from findings
    certificates, findings = _read(directory / CERTIFICATE_FILE, now)
    yield from findings
    yield from _inspect_key(directory / KEY_FILE, certificates[:1])
    for certificate in certificates[:1]:
        node = node_id_of(certificate)
        if node is None:
            yield Finding(f"{directory / CERTIFICATE_FILE} names no node of p2psgd", fault=True)
        else:
            yield Finding(f"it is the certificate of {common_name(certificate)}, id {node:016x}")
        yield from _inspect_chain(directory / CERTIFICATE_FILE, certificate, authorities)
    try:
        Credentials.load(directory)
    except UsageError as error:
        yield Finding(f"a daemon refuses {directory}: {error}", fault=True)


def _read(path: Path, now: datetime) -> tuple[list[x509.Certificate], list[Finding]]:
    try:
        certificates = read_certificates(path)
    except UsageError as error:
        return [], [Finding(str(error), fault=True)]
    return certificates, [_look_at_dates(path, certificate, now) for certificate in certificates]


def _look_at_dates(path: Path, certificate: x509.Certificate, now: datetime) -> Finding:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    who = f"{path}, of {common_name(certificate) or 'nobody'},"
    if now < begins:
        return Finding(f"{who} is valid only from {begins:%Y-%m-%d %H:%M} UTC on", fault=True)
    if now > ends:
        return Finding(f"{who} has expired on {ends:%Y-%m-%d %H:%M} UTC", fault=True)
    days = (ends - now).days
    soon = ": renew it soon" if days < WARNED_DAYS else ""
    return Finding(f"{who} is valid until {ends:%Y-%m-%d}, {days} days{soon}")


def _inspect_key(path: Path, belonging: list[x509.Certificate]) -> Iterator[Finding]:
    """`belonging`: the certificate that it should belong to, if that could be read."""
    try:
        check_key_file(path)
    except UsageError as error:
        yield Finding(str(error), fault=True)
        if not path.is_file():
            return
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        yield Finding(f"{path} holds no key in PEM form that can be read", fault=True)
        return
    if any(key.public_key() != certificate.public_key() for certificate in belonging):
        words = f"{path} does not belong to the certificate: take both from the same `p2psgd ca issue`"
        yield Finding(words, fault=True)
    elif belonging:
        yield Finding(f"{path} belongs to the certificate")


def _inspect_chain(
    path: Path, certificate: x509.Certificate, authorities: list[x509.Certificate]
) -> Iterator[Finding]:
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        yield Finding(f"{path} was issued by the CA of run {common_name(authority)}")
        return
    if authorities:
        names = " or ".join(map(common_name, authorities))
        yield Finding(f"{path} was not issued by the CA of run {names}, but by another", fault=True)
