"""A run's certificate authority: issues certificates and packs bundles."""

from __future__ import annotations

import contextlib
import io
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from p2psgd.base.errors import ExitCode, UsageError, cannot
from p2psgd.core.frontier import parse_node_id
from p2psgd.net.tls import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    check_key_file,
    node_of,
    uri_of,
    write_key,
)

# ----------------------------------------------------------------------------
# A run's certificate authority: a directory that an operator keeps, and that no node needs.
#
#     ca.pem  ca.key          the CA; any holder of the key can make nodes of this run
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
        """Open the authority; UsageError if there is none, or its key cannot be used."""
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
        """The name of its run."""
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

        UsageError if the name is not valid, the id is another node's, or `renew` is given for a node that has
        been issued no certificate before, or is not given for one that has.
        """
        if not _NODE_NAME.fullmatch(name) or parse_node_id(name) is not None:
            raise UsageError(
                f"invalid node name {name!r:.80}: give 1 to 64 letters, digits, dots, dashes and "
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
        """Return where the files of a node are; UsageError if it has none."""
        place = self.directory / "nodes" / name
        if not _NODE_NAME.fullmatch(name) or not place.is_dir():
            issued = _listed(self._issued())
            words = f"no files of a node {name!r:.80} are in {self.directory}; issued are: {issued}"
            raise UsageError(words, ExitCode.CONFIGURATION)
        return place

    def _issued(self) -> dict[str, int]:
        """Return the ids of all nodes, by name."""
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
        certificate = _sign(
            _named(name),
            key,
            (now, expires),
            issuer=(self.certificate.subject, self._key),
            extensions=(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri_of(node))]),
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            ),
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
    now = now.replace(microsecond=0)
    certificate = _sign(_named(run), key, (now, now + timedelta(days=CA_DAYS)), issuer=None)
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
    """Read the first certificate in a PEM file; UsageError if there is none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise cannot(f"read {path}", error) from None
    except ValueError:
        raise UsageError(f"{path} holds no certificate in PEM form", ExitCode.CONFIGURATION) from None


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of its subject; empty if it has none."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def node_id_of(certificate: x509.Certificate) -> int | None:
    """Return the id of the node that it names; None if it names none, or two."""
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


def _sign(
    name: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    times: tuple[datetime, datetime],
    *,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None,
    extensions: Iterable[x509.ExtensionType] = (),
) -> x509.Certificate:
    """Make a node's certificate, or without `issuer` a CA's; `extensions` are those that are not critical."""
    authority = issuer is None
    issuing_name, issuing_key = issuer or (name, key)
    usage = x509.KeyUsage(
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
    constraints = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    builder = (
        x509.CertificateBuilder(issuing_name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(times[0] - BACKDATED)
        .not_valid_after(times[1])
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), *extensions):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuing_key, hashes.SHA256())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@contextlib.contextmanager
def _appearing(place: Path, *, replace: bool) -> Iterator[Path]:
    """Make a directory beside `place`, which becomes `place` if all goes well and is gone otherwise."""
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
# One file for one machine: a node's TLS directory as a tar archive, which `tar -x` unpacks anywhere.
#
# It holds the node's key, so it is made for its owner alone and does not belong into a mail or onto a disk
# that stays.


def pack_bundle(directory: Path) -> bytes:
    """Pack a TLS directory: three files, the key with mode 0600, owned by the user that unpacks them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, mode in ((CA_FILE, 0o644), (CERTIFICATE_FILE, 0o644), (KEY_FILE, 0o600)):
            entry = tarfile.TarInfo(name)
            try:
                data, entry.mtime = (directory / name).read_bytes(), int((directory / name).stat().st_mtime)
            except OSError as error:
                raise cannot(f"read {directory / name}", error) from None
            entry.size, entry.mode = len(data), mode
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
