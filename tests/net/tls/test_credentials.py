"""A TLS directory as a daemon loads it: each thing that can be wrong with it is named."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.cli.ca_authority import CA_DAYS, create_authority
from p2psgd.net.tls import CertifiedPeer, Credentials
from p2psgd.net.tls_session import Session
from tests.certificates import LONG_AGO, NOW, Certificates


@pytest.fixture
def directory(certificates: Certificates, tmp_path: Path) -> Path:
    """A copy of a good one."""
    place = tmp_path / "tls"
    shutil.copytree(certificates.directory("node-1", node=0xABC), place)
    return place


def fault(directory: Path) -> str:
    with pytest.raises(UsageError) as caught:
        Credentials.load(directory)
    assert caught.value.exit_code in (ExitCode.CONFIGURATION, ExitCode.PERMISSION)
    return str(caught.value)


def test_a_good_directory_says_who_the_node_is_and_until_when(directory: Path) -> None:
    held = Credentials.load(directory)
    assert (held.node, held.name, held.run) == (0xABC, "node-1", "tested")
    assert held.expires == NOW.replace(microsecond=0) + timedelta(days=365)
    for context in (held.context(dialled=False), held.context(dialled=True)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("name", ["ca.pem", "node.pem", "node.key"])
def test_a_file_that_is_missing_or_no_pem_is_named(directory: Path, name: str) -> None:
    (directory / name).write_text("no certificate")
    assert str(directory / name) in fault(directory)
    (directory / name).unlink()
    assert f"there is no {directory / name}: `p2psgd ca issue` makes" in fault(directory)


def test_a_key_that_others_can_read_is_refused_with_the_command_that_mends_it(directory: Path) -> None:
    key = directory / "node.key"
    key.chmod(0o604)
    assert f"`chmod 600 {key}`" in fault(directory)
    if os.geteuid() == 0:
        key.chmod(0o640)  # as systemd's credentials look, which root owns
        Credentials.load(directory)
        key.chmod(0o620)
        assert "others can read or change" in fault(directory)
        os.chown(key, 12345, -1)
        key.chmod(0o600)
        assert f"belongs to user 12345, who can read it: `chown 0 {key}`" in fault(directory)


def test_what_does_not_belong_together_is_told_apart(
    directory: Path, certificates: Certificates, tmp_path: Path
) -> None:
    good = (directory / "node.pem").read_bytes()
    (directory / "node.pem").write_bytes((certificates.directory("node-2") / "node.pem").read_bytes())
    assert "does not belong to" in fault(directory)
    (directory / "node.pem").write_bytes(good)
    other = Certificates(tmp_path, run="other").directory("node-1")
    (directory / "ca.pem").write_bytes((other / "ca.pem").read_bytes())
    assert "was not issued by the CA in" in fault(directory)


def test_dates_that_are_wrong_are_told(certificates: Certificates) -> None:
    assert "has expired" in fault(certificates.directory("old", now=LONG_AGO, days=3))
    early = certificates.directory("early", now=NOW + timedelta(days=100))
    assert "is not valid yet: set this machine's clock" in fault(early)


def test_a_certificate_that_names_no_node_is_refused(directory: Path) -> None:
    """The CA's own, say: its key would open every door."""
    ca = directory.parent / "other"
    made = Certificates(ca, run="other").authority.directory
    shutil.copy(made / "ca.pem", directory / "ca.pem")
    shutil.copy(made / "ca.pem", directory / "node.pem")
    shutil.copy(made / "ca.key", directory / "node.key")
    assert fault(directory)


def signed_for(certificates: Certificates, place: Path, uri: str, name: str) -> Path:
    """A TLS directory of a CA's that knows a name alone, with the extensions that cert-manager writes."""
    place.mkdir()
    held = certificates.authority
    key, ca_key = ec.generate_private_key(ec.SECP256R1()), held.directory / "ca.key"
    signer = serialization.load_pem_private_key(ca_key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    made = (
        x509.CertificateBuilder(serial_number=x509.random_serial_number())
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(held.certificate.subject)
        .public_key(key.public_key())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=90))
        .add_extension(x509.KeyUsage(True, *[False] * 8), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False
        )
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
        .sign(signer, hashes.SHA256())
    )
    shutil.copy(held.directory / "ca.pem", place)
    (place / "node.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (place / "node.key").touch(0o600)
    (place / "node.key").write_bytes(key.private_bytes(*pem))
    return place


def test_a_certificate_may_hold_a_name_from_which_the_id_follows(
    certificates: Certificates, tmp_path: Path
) -> None:
    first, again, other = (
        Credentials.load(signed_for(certificates, tmp_path / place, f"p2psgd:name:{name}", name))
        for place, name in (("a", "pod-0"), ("b", "pod-0"), ("c", "pod-1"))
    )
    digest = hashlib.sha256(b"p2psgd:name:pod-0").hexdigest()
    assert (first.node, first.name) == (int(digest[:16], 16), "pod-0")
    assert (again.node, other.node != first.node) == (first.node, True)


def test_it_is_refused_under_another_common_name(certificates: Certificates, tmp_path: Path) -> None:
    directory = signed_for(certificates, tmp_path / "tls", "p2psgd:name:pod-0", "pod-1")
    assert "names no node of p2psgd" in fault(directory)


@pytest.mark.parametrize("name", ["", "-pod", "a b", "a/b", "x" * 65, "pod%2D0", "pod-0\n"])
def test_a_name_of_another_form_names_no_node(certificates: Certificates, tmp_path: Path, name: str) -> None:
    directory = signed_for(certificates, tmp_path / "tls", f"p2psgd:name:{name}", name[:64] or "pod")
    assert "names no node of p2psgd" in fault(directory)


def test_reloading_takes_what_is_there_now_or_keeps_what_was(
    tmp_path: Path, certificates: Certificates
) -> None:
    own = Certificates(tmp_path, run="reloaded")
    held = own.credentials("node-1", node=1)
    first = held.context(dialled=False), held.expires
    own.authority.issue("node-1", now=NOW, days=100, renew=True)
    held.reload()
    assert held.expires == NOW.replace(microsecond=0) + timedelta(days=100)
    assert held.context(dialled=False) is not first[0]
    kept = held.context(dialled=False), held.expires
    (held.directory / "node.pem").write_text("nothing")
    with pytest.raises(UsageError):
        held.reload()
    own.authority.issue("node-2", now=NOW, node=2)
    for path in own.authority.directory_of("node-2").iterdir():
        shutil.copy(path, held.directory)
    with pytest.raises(
        UsageError, match=r"holds the certificate of another node \(node-2, id 0000000000000002"
    ):
        held.reload()
    assert (held.context(dialled=False), held.expires, held.node) == (*kept, 1)


def test_it_ends_when_the_ca_does_if_that_is_sooner(tmp_path: Path) -> None:
    begun = NOW.replace(microsecond=0) - timedelta(days=CA_DAYS - 5)
    authority = create_authority(tmp_path / "ca", "old", now=begun)
    held = Credentials.load(authority.issue("node-1", now=NOW).directory)
    assert held.expires == begun + timedelta(days=CA_DAYS)


def test_while_a_run_goes_over_to_another_ca_both_are_in_force(tmp_path: Path) -> None:
    old, new = (Certificates(tmp_path, run=run) for run in ("old", "new"))
    places = [old.directory("node-1", node=1), new.directory("node-2", node=2)]
    both = b"".join((place / "ca.pem").read_bytes() for place in places)
    for place in places:
        (place / "ca.pem").write_bytes(both)
    one, other = map(Credentials.load, places)
    client = Session(one.context(dialled=True), dialled=True)
    server = Session(other.context(dialled=False), dialled=False)
    client.shake_hands()
    for _ in range(2):
        server.receive(client.outgoing.read())
        client.receive(server.outgoing.read())
    assert (client.peer, server.peer) == (CertifiedPeer(2, "node-2"), CertifiedPeer(1, "node-1"))
    assert (one.run, other.run) == ("old", "new")
