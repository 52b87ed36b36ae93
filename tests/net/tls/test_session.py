"""TLS in memory: however the bytes come, and whatever they are."""

from __future__ import annotations

import contextlib
import random

import pytest

from p2psgd.net.tls import CertifiedPeer
from p2psgd.net.tls_session import ANSWERS_BYTES_MAX, HANDSHAKE_BYTES_MAX, Session
from p2psgd.wire.reject import PeerError
from tests.certificates import Certificates
from tests.key_updates import ask_for_new_keys


def pair(certificates: Certificates) -> tuple[Session, Session]:
    client = Session(certificates.client("client", node=1), dialled=True)
    server = Session(certificates.credentials("server", node=2).context(dialled=False), dialled=False)
    client.shake_hands()
    return client, server


def pass_on(source: Session, target: Session, piece: int) -> int:
    data = source.outgoing.read()
    for start in range(0, len(data), piece):
        target.receive(data[start : start + piece])
    return len(data)


def shake(client: Session, server: Session, piece: int) -> None:
    while pass_on(client, server, piece) + pass_on(server, client, piece):
        pass


def read_all(session: Session) -> bytes:
    buffer, got = memoryview(bytearray(50_000)), b""
    while count := session.read_into(buffer):
        got += buffer[:count]
    return got


@pytest.mark.parametrize("piece", [1, 7, 1000, 100_000])
def test_bytes_in_pieces_of_any_size_come_out_as_they_went_in(certificates: Certificates, piece: int) -> None:
    client, server = pair(certificates)
    shake(client, server, piece)
    assert client.peer == CertifiedPeer(2, "server")
    assert server.peer == CertifiedPeer(1, "client")
    for size in (1, 16_384, 16_385, 100_000, 0):
        data = random.Random(size).randbytes(size)
        client.encrypt(data)
        server.encrypt(memoryview(data)[::-1].tobytes())
        pass_on(client, server, piece)
        pass_on(server, client, piece)
        assert read_all(server) == data
        assert read_all(client) == data[::-1]


def test_a_handshake_stays_far_below_its_cap(certificates: Certificates) -> None:
    client, server = pair(certificates)
    sent = 0
    while (there := pass_on(client, server, 4096)) + (back := pass_on(server, client, 4096)):
        sent = max(sent + there, back)
    assert server.peer is not None
    assert sent < HANDSHAKE_BYTES_MAX / 3


def test_a_handshake_that_does_not_end_is_refused_at_its_cap(certificates: Certificates) -> None:
    _, server = pair(certificates)
    server.receive(b"\x16\x03\x01\x40\x00\x01\x00\xff\xff")  # a hello of 64 KiB, which RFC 8446 allows
    server.receive(bytes(HANDSHAKE_BYTES_MAX - 9))
    with pytest.raises(PeerError, match="before its TLS handshake was done"):
        server.receive(b"x")


def test_no_ticket_is_given_that_could_replace_a_certificate(certificates: Certificates) -> None:
    client, server = pair(certificates)
    shake(client, server, 4096)
    assert not read_all(client)
    assert client._object.session is not None
    assert not client._object.session.has_ticket


def test_whatever_bit_is_flipped_ends_in_a_counted_reason_or_in_nothing(certificates: Certificates) -> None:
    chance = random.Random(25)
    seen: set[str] = set()
    for _ in range(400):
        client, server = pair(certificates)
        with contextlib.suppress(PeerError):
            for turn in range(3):
                for source, target in ((client, server), (server, client)):
                    if turn == 2 and source.peer is not None:
                        source.encrypt(bytes(100))
                    data = bytearray(source.outgoing.read())
                    if data and chance.random() < 0.3:
                        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                    try:
                        target.receive(bytes(data))
                        if target.peer is not None:
                            assert read_all(target) in (b"", bytes(100))
                    except PeerError as error:
                        seen.add(error.label)
                        raise
        assert not (client.peer is not None and client.peer != CertifiedPeer(2, "server"))
    assert "TLS" in seen


def test_a_peer_that_asks_for_new_keys_without_end_is_refused_before_the_answers_fill_the_memory(
    certificates: Certificates,
) -> None:
    client, server = pair(certificates)
    shake(client, server, 4096)
    for _ in range(100):  # more than any implementation asks on one link, by far
        ask_for_new_keys(client)
    pass_on(client, server, 4096)
    assert not read_all(server)
    answered = []

    def ask_on() -> None:
        for _ in range(100):
            for _ in range(100):
                ask_for_new_keys(client)
            pass_on(client, server, 4096)
            read_all(server)
            answered.append(len(server.outgoing.read()))

    with pytest.raises(PeerError, match="new keys"):
        ask_on()
    assert sum(answered) <= ANSWERS_BYTES_MAX
