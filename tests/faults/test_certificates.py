"""Fault 25: whoever comes without this run's certificate, or with the wrong one, to a real daemon. Each is
refused, each for a reason of its own, which the daemon counts and, as far as TLS lets it, tells.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import PROTOCOL_VERSION, Hello, pack_message
from tests import DEADLINE_S
from tests.certificates import LONG_AGO, Certificates, careless
from tests.daemons import all_stopped, trainer, until
from tests.faults.target import Target, refusal
from tests.node.test_node import Place, calm


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Target]:
    path = tmp_path_factory.mktemp("target")
    place = Place(path, 1)
    options = ("--trainer", trainer(calm(path), "--steps", "5"), *certificates.options("node-0"))
    with all_stopped([place.start(0, *options)]) as daemons:
        until(daemons[0].finished, "the trainer has finished")
        yield Target(daemons[0], place.ports[0], certificates)
        assert daemons[0].stop() == 0


def hello(target: Target, *, node: int, name: str, run: bytes | None = None) -> bytes:
    theirs = target.status()["run"]
    return pack_message(
        Hello(
            protocol=PROTOCOL_VERSION,
            node=node,
            incarnation=1,
            name=name,
            run=bytes.fromhex(theirs["fingerprint"]) if run is None else run,
            weights=theirs["weights"],
            quantum_log2=theirs["quantum_log2"],
            mode=theirs["mode"],
            label=theirs["label"],
            rank="",
        )
    )


def told(target: Target, context: ssl.SSLContext) -> str:
    """What OpenSSL calls the alert that the daemon ends this client's connection with."""
    greeting = hello(target, node=5, name="stranger-5")
    try:
        with encrypted(target, context) as connected:
            connected.sendall(greeting)
            while connected.recv(4096):
                pass
    except ssl.SSLError as error:
        return error.reason
    return "nothing"


def encrypted(target: Target, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_S))


def counted(target: Target, reason: str) -> int:
    return int(target.status()["dropped"].get(reason, 0))


def old_tls() -> ssl.SSLContext:
    context = careless(None)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_fault_25_each_bad_certificate_is_told_and_counted_by_its_own_reason(
    target: Target, certificates: Certificates, tmp_path: Path
) -> None:
    other = Certificates(tmp_path, run="other")
    namesake = Certificates(tmp_path / "again", run="tested")  # `ca init` twice, with the same name
    expired = certificates.directory("expired", now=LONG_AGO, days=30)
    early = certificates.directory("early", now=LONG_AGO.replace(year=2036), days=1)
    cases = {
        "wrong CA": [
            (careless(other.directory("node-1")), "TLSV1_ALERT_UNKNOWN_CA"),
            (careless(namesake.directory("node-1")), "TLSV1_ALERT_UNKNOWN_CA"),
        ],
        "expired certificate": [(careless(expired), "SSLV3_ALERT_CERTIFICATE_EXPIRED")],
        "certificate not yet valid": [(careless(early), "SSLV3_ALERT_BAD_CERTIFICATE")],
        "no certificate": [(careless(None), "TLSV13_ALERT_CERTIFICATE_REQUIRED")],
        "TLS version": [(old_tls(), "TLSV1_ALERT_PROTOCOL_VERSION")],
    }
    before = target.state()
    for reason, tries in cases.items():
        for context, alert in tries:
            count = counted(target, reason)
            assert told(target, context) == alert, reason
            assert counted(target, reason) == count + 1
    assert target.state() == before
    assert not target.daemon.linked()


def test_fault_25_another_nodes_certificate_is_refused_whatever_is_said(
    target: Target, certificates: Certificates
) -> None:
    context = certificates.client("stranger-7", node=7)
    for node, name in ((8, "stranger-7"), (7, "stranger-8"), (8, "stranger-8")):
        with encrypted(target, context) as connected:
            assert refusal(connected, hello(target, node=node, name=name)) == "another node's certificate"
    assert counted(target, "another node's certificate") == 3
    assert "came with the certificate of stranger-7, id 0000000000000007" in target.daemon.words()


def test_fault_25_the_right_certificate_with_another_run_is_refused(
    target: Target, certificates: Certificates
) -> None:
    with encrypted(target, certificates.client("stranger-9", node=9)) as connected:
        assert refusal(connected, hello(target, node=9, name="stranger-9", run=b"other" * 6 + b"!!")) == "run"
    assert counted(target, "run") == 1


def test_fault_25_plaintext_is_refused_in_plaintext(target: Target) -> None:
    with socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_S) as connected:
        assert refusal(connected, hello(target, node=5, name="stranger-5")) == "plaintext on a TLS port"
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", pack_frame(FrameType.FETCH, b"\0" * 22), bytes(3)):
        before = counted(target, "plaintext on a TLS port")
        with socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_S) as connected:
            refusal(connected, greeting)
        assert counted(target, "plaintext on a TLS port") == before + 1


def test_noise_after_the_first_bytes_of_tls_is_refused(target: Target) -> None:
    before = counted(target, "TLS")
    noises = (b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x03\xff\xff" + bytes(70_000), b"\x15\x03\x03\0\1\1")
    for noise in noises:
        with socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_S) as connected:
            refusal(connected, noise)
    until(lambda: counted(target, "TLS") == before + len(noises), "all of it is counted")


def test_a_node_with_tls_and_one_without_tell_each_other(tmp_path: Path, certificates: Certificates) -> None:
    place = Place(tmp_path, 2)
    trained = ("--trainer", trainer(calm(tmp_path), "--steps", "5"))
    with_tls = place.start(0, *trained, *certificates.options("node-0"), state="encrypted/node-0")
    with all_stopped([with_tls, place.start(1, *trained)]) as daemons:

        def words(number: int) -> str:
            status = daemons[number].status() or {"peers": []}
            return "".join(peer["error"] for peer in status["peers"])

        until(lambda: "it speaks plaintext and this node TLS" in words(0), "the one with TLS says it")
        until(lambda: "it speaks plaintext and this node TLS" in words(1), "and the other is told")
        for number, reason in ((0, "plaintext on a TLS port"), (1, "TLS on a plaintext port")):
            until(lambda: (daemons[number].status() or {})["dropped"].get(reason), reason)  # noqa: B023
