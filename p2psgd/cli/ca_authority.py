"""A run's certificate authority: issues certificates, inspects directories, packs bundles."""

from __future__ import annotations

import contextlib
import io
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from p2psgd.core.frontier import parse_node_id
from p2psgd.errors import ExitCode, UsageError, cannot
from p2psgd.net.tls import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    WARNED_DAYS,
    Credentials,
    check_key_file,
    node_of,
    uri_of,
    write_key,
)

# ----------------------------------------------------------------------------
# A run's certificate authority: a directory that an operator keeps, and that no node needs.
#
#     ca.pem  ca.key          the CA; whoever has the key can make nodes of this run
#     issued/NAME.pem         every node's last certificate, for its id stays when it is renewed
#     nodes/NAME/             what belongs on that node's machine: ca.pem, node.pem, node.key
#
# Keys are ECDSA on P-256. Every directory appears whole or not at all, and nothing is replaced unless asked.


CA_KEY_FILE: Final = "ca.key"
CA_DAYS: Final = 3650  # a run that outlives it is another run
NODE_DAYS: Final = 365  # a daemon warns from 30 days before; renewing drops no session
BACKDATED: Final = timedelta(hours=1)  # for machines whose clocks are behind
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Issued:
    """A certificate and where its directory is."""

    name: str
    node: int
    expires: datetime
    directory: Path


class Authority:
    """The CA in `directory`."""

    def __init__(self, directory: Path) -> None:
        """UsageError if there is none, or its key cannot be used."""
        self.directory = directory
        key_path = directory / CA_KEY_FILE
        if not key_path.exists():
            raise UsageError(
                f"{directory} holds no CA: `p2psgd ca init {directory}` makes one, --ca names another",
                ExitCode.CONFIGURATION,
            )
        check_key_file(key_path)
        self.certificate = read_certificate(directory / CA_FILE)
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        except (ValueError, TypeError):
            raise UsageError(f"{key_path} holds no usable key", ExitCode.CONFIGURATION) from None
        if (
            not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != self.certificate.public_key()
        ):
            words = f"{key_path} does not belong to {directory / CA_FILE}"
            raise UsageError(words, ExitCode.CONFIGURATION)
        self._key = key

    @property
    def run(self) -> str:
        """What people call its run."""
        return common_name(self.certificate)

    def issue(
        self,
        name: str,
        *,
        now: datetime,
        days: int = NODE_DAYS,
        node: int | None = None,
        renew: bool = False,
    ) -> Issued:
        """Make key and certificate for a node, valid from `now` (UTC) on; `node` is its id, by default the
        one it had or a new one.

        UsageError if the name is no good, the id is another node's, or `renew` is given for a node that has
        been issued no certificate before, or is not given for one that has.
        """
        if not _NODE_NAME.fullmatch(name) or parse_node_id(name) is not None:
            raise UsageError(
                f"{name!r:.80} is no name for a node: give 1 to 64 letters, digits, dots, dashes and "
                "underscores, which are not the 16 digits of an id"
            )
        known = self._issued()
        if name in known and not renew:
            raise UsageError(
                f"{name} has been issued a certificate before: --renew gives it a new one with the same id",
                ExitCode.CONFIGURATION,
            )
        if renew and name not in known:
            raise UsageError(
                f"{name} has been issued no certificate that could be renewed; issued are: {_listed(known)}; "
                "without --renew it gets its first one",
                ExitCode.CONFIGURATION,
            )
        chosen = known.get(name, secrets.randbits(64)) if node is None else node
        for other, id_ in known.items():
            if id_ == chosen and other != name:
                raise UsageError(f"{chosen:016x} is the id of {other}: every node has its own")
        return self._make(name, chosen, now.replace(microsecond=0), days)

    def directory_of(self, name: str) -> Path:
        """Where the files of a node are; UsageError if it has none."""
        place = self.directory / "nodes" / name
        if not _NODE_NAME.fullmatch(name) or not place.is_dir():
            issued = _listed(self._issued())
            raise UsageError(f"no files of a node {name!r:.80} are in {self.directory}; issued are: {issued}")
        return place

    def _issued(self) -> dict[str, int]:
        """The ids of all nodes, by name."""
        found = {}
        for path in (self.directory / "issued").glob("*.pem"):
            node = node_id_of(read_certificate(path))
            if node is None:
                raise UsageError(f"{path} names no node", ExitCode.CONFIGURATION)
            found[path.stem] = node
        return found

    def _make(self, name: str, node: int, now: datetime, days: int) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        expires = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        if expires <= now:
            raise UsageError(f"the CA in {self.directory} has expired: make another", ExitCode.CONFIGURATION)
        usage = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        certificate = (
            _builder(_named(name), self.certificate.subject, key.public_key(), now, expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri_of(node))]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        place = self.directory / "nodes" / name
        with _writing(self.directory):
            for folder in (place.parent, self.directory / "issued"):
                folder.mkdir(mode=0o700, exist_ok=True)
            with _appearing(place, replace=True) as fresh:
                (fresh / CA_FILE).write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
                (fresh / CERTIFICATE_FILE).write_bytes(pem)
                write_key(fresh / KEY_FILE, _key_pem(key))
                # First of all, for the id of a node must never be lost.
                record = self.directory / "issued" / f".{name}.new"
                record.write_bytes(pem)
                record.replace(self.directory / "issued" / f"{name}.pem")
        return Issued(name, node, expires, place)


def create_authority(directory: Path, run: str, *, now: datetime) -> Authority:
    """Make a CA, valid from `now` (UTC) on, for the run that people call so; UsageError if the directory
    holds something already.
    """
    if not 1 <= len(run) <= 64 or not run.isprintable():
        raise UsageError("--run: give 1 to 64 printable characters")
    key = ec.generate_private_key(ec.SECP256R1())
    now, subject = now.replace(microsecond=0), _named(run)
    certificate = (
        _builder(subject, subject, key.public_key(), now, now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            f"{directory} holds something already: a CA is made in a new directory", ExitCode.CONFIGURATION
        )
    with _writing(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _appearing(directory, replace=False) as fresh:
            write_key(fresh / CA_KEY_FILE, _key_pem(key))
            (fresh / CA_FILE).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return Authority(directory)


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate in a PEM file; UsageError if there is none."""
    return read_certificates(path)[0]


def read_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates in a PEM file; UsageError if there is none."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise cannot(f"read {path}", error) from None
    except ValueError:
        raise UsageError(f"{path} holds no certificate in PEM form", ExitCode.CONFIGURATION) from None


def common_name(certificate: x509.Certificate) -> str:
    """Of its subject; empty if it has none."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def node_id_of(certificate: x509.Certificate) -> int | None:
    """The id of the node that it names; None if it names none, or two."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return node_of(uris[0]) if len(uris) == 1 else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, expires: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@contextlib.contextmanager
def _appearing(place: Path, *, replace: bool) -> Iterator[Path]:
    """A new directory beside `place`, which becomes `place` if all goes well and is gone otherwise."""
    fresh, old = (place.with_name(f".{place.name}.{word}") for word in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        yield fresh
        if replace and place.exists():
            shutil.rmtree(old, ignore_errors=True)
            place.rename(old)
        fresh.rename(place)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot(f"write to {directory}", error) from None


# ----------------------------------------------------------------------------
# What is wrong with a TLS directory, or with a CA's: every finding as one sentence, for `p2psgd ca check`.
#
# Looks at each thing by itself, with dates and names, where loading the directory as a daemon does stops at
# the first fault. It asks that loading last, so that nothing passes here that a daemon refuses.


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


# ----------------------------------------------------------------------------
# One file for one machine: a node's TLS directory as a tar archive, which `tar -x` unpacks anywhere.
#
# It holds the node's key, so it is made for its owner alone and does not belong into a mail or onto a disk
# that stays.


def pack_bundle(directory: Path) -> bytes:
    """The archive of a TLS directory: three files, the key with mode 0600, of whoever unpacks it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, mode in ((CA_FILE, 0o644), (CERTIFICATE_FILE, 0o644), (KEY_FILE, 0o600)):
            try:
                data = (directory / name).read_bytes()
            except OSError as error:
                raise cannot(f"read {directory / name}", error) from None
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            entry.mtime = int((directory / name).stat().st_mtime)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def write_bundle(directory: Path, file: Path) -> None:
    """Write it to a new file; UsageError if that is there already or cannot be written."""
    data = pack_bundle(directory)
    try:
        write_key(file, data)
    except FileExistsError:
        words = f"{file} exists: name another with --out, or remove it"
        raise UsageError(words, ExitCode.CONFIGURATION) from None
    except OSError as error:
        raise cannot(f"write {file}", error) from None
