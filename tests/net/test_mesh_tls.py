"""Links over TLS on real sockets, on both event loops: what works, and what a dialler is told when not."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.net import admission
from p2psgd.net.address import Address
from p2psgd.net.tls import Credentials
from p2psgd.wire.frames import NUMBERS_BYTES_MAX, FrameType, pack_frame
from p2psgd.wire.messages import Goodbye, pack_message
from tests.certificates import LONG_AGO, Certificates, careless
from tests.conftest import LoopFactory
from tests.key_updates import ask_for_new_keys
from tests.net.parties import Party, agree, run, see_a_life_superseded, settled, stall, until
from tests.net.test_mesh_numbers import chunk_head
from tests.siege import besieged, loopback_addresses


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Faulty(Credentials):
    """Credentials that no daemon would start with: it dials with another context than its own."""

    def __init__(self, directory: Path, dialer: ssl.SSLContext) -> None:
        super().__init__(directory)
        self._dialer = dialer

    def context(self, *, dialled: bool) -> ssl.SSLContext:
        return self._dialer if dialled else super().context(dialled=False)


def party(certificates: Certificates, node: int) -> Party:
    return Party(node, credentials=certificates.credentials(f"node-{node}", node=node))


def serial(one: Party, other: Party) -> str:
    """Of the certificate that `one` has been shown by `other`."""
    session = one.mesh.links[other.origin.node].connection._session
    assert session is not None
    return str((session._object.getpeercert() or {})["serialNumber"])


def test_four_nodes_that_all_dial_each_other_end_with_one_encrypted_link_each(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        parties = [party(certificates, node) for node in (4, 1, 3, 2)]
        addresses = [each.address for each in parties]
        for each in parties:
            await each.start(*[address for address in addresses if address != each.address])
        await until(lambda: settled(parties))
        for each in parties:
            for link in each.mesh.links.values():
                certified = link.connection.certified
                assert certified is not None
                assert (certified.node, certified.name) == (link.peer.node, link.name)
            for other in parties:
                if other is not each:
                    each.mesh.send(other.origin, pack_message(Goodbye(sequence=each.origin.node)))
        await until(lambda: all(len(each.host.frames) == 3 for each in parties))
        for each in parties:
            await each.mesh.close()
        assert all(not each.host.open for each in parties)
        assert not any(each.mesh.dropped for each in parties)

    run(loop_factory, scenario)


def test_large_and_small_frames_arrive_whole_also_at_a_peer_that_reads_nothing_for_a_while(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        fast, slow = party(certificates, 1), party(certificates, 2)
        await fast.start(slow.address)
        await slow.start()
        await until(lambda: agree(fast, slow))
        stalled, link = stall(slow, 1), fast.mesh.links[2].connection
        sizes = itertools.cycle([1, NUMBERS_BYTES_MAX, 16 * 1024, 16 * 1024 + 1, 100, 300_000])
        pieces: list[NDArray[np.uint8]] = []
        while link.writable or len(pieces) < 6:
            numbers = np.random.default_rng(len(pieces)).integers(0, 256, next(sizes), np.uint8)
            pieces.append(numbers)
            fast.mesh.send_floats(slow.origin, chunk_head(numbers.data), numbers.data)
            fast.mesh.send(slow.origin, pack_frame(FrameType.STATUS, numbers[:1000].tobytes()))
            await asyncio.sleep(0)
        stalled.resume_reading()
        await until(lambda: len(slow.host.frames) == 2 * len(pieces))
        got = [body for _, _, body in slow.host.frames]
        assert [body[4:] for body in got[::2]] == [piece.tobytes() for piece in pieces]
        assert got[1::2] == [piece[:1000].tobytes() for piece in pieces]
        fast.mesh.report_drained(slow.origin)
        await until(lambda: fast.host.drained == 1)
        await fast.mesh.close()
        await slow.mesh.close()

    run(loop_factory, scenario)


def test_what_was_sent_last_arrives_before_the_end(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        one, other = party(certificates, 1), party(certificates, 2)
        await one.start(other.address)
        await other.start()
        await until(lambda: agree(one, other))
        for number in range(200):
            other.mesh.send(one.origin, pack_frame(FrameType.STATUS, bytes([number]) * 20_000))
            one.mesh.send(other.origin, pack_frame(FrameType.STATUS, bytes([number]) * 20_000))
        await one.mesh.close()
        await until(lambda: not other.host.open)
        assert len(other.host.frames) == 200
        assert other.host.closed == ["closed by the peer"]
        await other.mesh.close()

    run(loop_factory, scenario)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> dict[str, Path | None]:
    other = Certificates(tmp_path_factory.mktemp("other"), run="other")
    return {
        "expired": certificates.directory("expired", now=LONG_AGO, days=30),
        "early": certificates.directory("early", now=LONG_AGO.replace(year=2036), days=1),
        "of another CA": other.directory("node-1"),
        "missing": None,
    }


@pytest.mark.parametrize(
    "case",
    [
        ("expired", "expired certificate", "it says that this node's certificate has expired"),
        ("early", "certificate not yet valid", "are the clocks of both right?"),
        ("of another CA", "wrong CA", "it does not know the CA of this node's certificate"),
        ("missing", "no certificate", "it wants a certificate of this node"),
    ],
    ids=lambda case: case[0],
)
def test_a_dialler_learns_after_its_handshake_why_it_was_refused(
    loop_factory: LoopFactory,
    certificates: Certificates,
    faulty: dict[str, Path | None],
    case: tuple[str, str, str],
) -> None:
    fault, counted, words = case

    async def scenario() -> None:
        server = party(certificates, 1)
        await server.start()
        directory = certificates.directory("node-2", node=2)
        shown = careless(faulty[fault], ca=directory / "ca.pem")
        client = Party(2, credentials=Faulty(directory, shown))
        await client.start(server.address)
        await until(lambda: words in client.mesh.dialer.dialers[0].words)
        assert server.mesh.dropped[counted] >= 1
        assert client.mesh.dropped.total() >= 1
        assert all(reason.startswith("rejected by peer: ") for reason in client.mesh.dropped)
        assert not server.host.opened
        assert not client.host.opened
        await client.mesh.close()
        await server.mesh.close()

    run(loop_factory, scenario)


def test_a_dialler_refuses_a_listener_of_another_ca_and_says_so_to_both(
    loop_factory: LoopFactory, certificates: Certificates, tmp_path: Path
) -> None:
    async def scenario() -> None:
        impostor = party(Certificates(tmp_path, run="other"), 1)
        await impostor.start()
        client = party(certificates, 2)
        await client.start(impostor.address)
        await until(lambda: "not of this run's CA" in client.mesh.dialer.dialers[0].words)
        await until(lambda: impostor.mesh.dropped["rejected by peer: wrong CA"] >= 1)
        assert client.mesh.dropped["wrong CA"] >= 1
        await client.mesh.close()
        await impostor.mesh.close()

    run(loop_factory, scenario)


def test_a_listener_with_another_nodes_certificate_is_refused(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        impostor = Party(3, credentials=certificates.credentials("node-1", node=1))
        await impostor.start()
        client = party(certificates, 2)
        await client.start(impostor.address)
        await until(lambda: client.mesh.dropped["another node's certificate"] >= 1)
        await until(lambda: "give every node its own" in client.mesh.dialer.dialers[0].words)
        assert not client.host.opened
        await client.mesh.close()
        await impostor.mesh.close()

    run(loop_factory, scenario)


def test_a_superseded_life_is_told_over_tls(loop_factory: LoopFactory, certificates: Certificates) -> None:
    async def scenario() -> None:
        cloned = certificates.credentials("node-2", node=2)
        hub = party(certificates, 1)
        old, new = Party(2, incarnation=1, credentials=cloned), Party(2, incarnation=2, credentials=cloned)
        await see_a_life_superseded(hub, old, new)

    run(loop_factory, scenario)


def test_new_links_use_renewed_certificates_and_old_ones_go_on(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    async def scenario() -> None:
        certificates = Certificates(tmp_path)
        one, two, three = (party(certificates, node) for node in (1, 2, 3))
        await one.start()
        await two.start(one.address)
        await until(lambda: agree(one, two))
        before = serial(two, one)
        certificates.authority.issue("node-1", now=LONG_AGO.replace(year=2026), days=9000, renew=True)
        assert one.mesh.credentials is not None
        one.mesh.credentials.reload()
        await three.start(one.address)
        await until(lambda: agree(one, three))
        assert serial(two, one) == before != serial(three, one)
        one.mesh.send(two.origin, pack_message(Goodbye(sequence=5)))
        await until(lambda: len(two.host.frames) == 1)
        assert two.host.opened == 1
        for each in (one, two, three):
            await each.mesh.close()

    run(loop_factory, scenario)


def test_a_server_that_never_answers_a_handshake_is_given_up(
    loop_factory: LoopFactory, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE_TIMEOUT_S", 0.5)

    async def scenario() -> None:
        deaf = socket.create_server(("127.0.0.1", 0))  # the kernel connects, and nobody reads
        client = party(certificates, 2)
        await client.start(Address("127.0.0.1", deaf.getsockname()[1]))
        await until(lambda: client.mesh.dropped["no handshake"] >= 1)
        assert client.mesh.dialer.dialers[0].words == "no handshake within 0 s"
        await client.mesh.close()
        deaf.close()

    run(loop_factory, scenario)


def test_a_peer_that_asks_for_new_keys_while_this_node_ends_its_link_is_no_bug(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        bugs: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
        one, other = party(certificates, 1), party(certificates, 2)
        await one.start(other.address)
        await other.start()
        await until(lambda: agree(one, other))
        theirs = other.mesh.links[1].connection
        one.mesh.links[2].connection.finish("the end")
        assert theirs._session is not None
        for _ in range(3):  # the last answer waits for the next read
            ask_for_new_keys(theirs._session)
        theirs._flush()
        await until(lambda: bool(one.host.closed))
        assert one.host.closed == ["the end"]
        assert not bugs
        await one.mesh.close()
        await other.mesh.close()

    run(loop_factory, scenario)


def test_a_peer_that_has_shown_its_certificate_does_not_give_way_to_strangers(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        hub, peer = party(certificates, 1), party(certificates, 2)
        await hub.start()
        try:
            context = certificates.client("node-2", node=2)
            _, writer = await asyncio.open_connection(
                hub.address.host, hub.address.port, ssl=context, server_hostname=""
            )
            await until(lambda: any(each.certified for each in hub.mesh._handshakes))
            with besieged(hub.address, loopback_addresses(48)):
                await until(lambda: hub.mesh.dropped["displaced"] > admission.HANDSHAKES_MAX)
                writer.write(pack_message(peer.mesh.greeting))
                await until(lambda: 2 in hub.host.open)
            writer.close()
        finally:
            peer.listening.close()
            await hub.mesh.close()

    run(loop_factory, scenario)
