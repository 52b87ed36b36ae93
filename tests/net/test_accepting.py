"""What becomes of connections that come in while descriptors are short, on both loops."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from typing import cast

import pytest

from p2psgd.net import listen, mesh
from tests import DEADLINE_S
from tests.conftest import LoopFactory
from tests.net.parties import Party, run, until

ELSEWHERE = "127.0.0.2"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether new descriptors are among those kept for files: the last of the list says so."""
    answers = [False]
    monkeypatch.setattr(listen, "is_reserved", lambda _: answers[-1])
    monkeypatch.setattr(mesh, "has_room", lambda: not answers[-1])
    return answers


def connect(party: Party, host: str = "127.0.0.1") -> socket.socket:
    place = party.address.host, party.address.port
    return socket.create_connection(place, timeout=DEADLINE_S, source_address=(host, 0))


def test_who_gets_a_kept_descriptor_is_refused_and_that_is_told_once(
    loop_factory: LoopFactory, kept: list[bool]
) -> None:
    async def scenario() -> None:
        party, friend = Party(1), Party(2)
        await party.start()
        kept.append(True)
        for count in range(1, 4):
            refused = connect(party)
            await until(lambda: party.mesh.dropped["descriptors"] == count)  # noqa: B023
            assert refused.recv(1) == b""
            refused.close()
        [alarm] = party.host.alarms
        assert "are kept for this node's own files: further connections are refused" in alarm
        kept.append(False)
        await friend.start(party.address)
        await until(lambda: 2 in party.host.open)
        await party.mesh.close()
        await friend.mesh.close()

    run(loop_factory, scenario)


def test_the_oldest_of_a_crowd_gives_way_to_another_host(loop_factory: LoopFactory, kept: list[bool]) -> None:
    async def scenario() -> None:
        party = Party(1)
        await party.start()
        crowd = [connect(party) for _ in range(3)]
        await until(lambda: len(party.mesh._handshakes) == 3)
        kept.append(True)
        late = connect(party, ELSEWHERE)
        await until(lambda: party.mesh.dropped["displaced"] == 1)
        assert crowd[0].recv(1) == b""
        assert len(party.mesh._handshakes) == 2
        for end in (*crowd, late):
            end.close()
        await party.mesh.close()

    run(loop_factory, scenario)


@pytest.mark.parametrize("turns", range(6))
def test_no_connection_is_left_open_when_accepting_ends(loop_factory: LoopFactory, turns: int) -> None:
    async def scenario() -> None:
        loop, made = asyncio.get_running_loop(), list[asyncio.Transport]()

        class Made(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(cast("asyncio.Transport", transport))

        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
            listening.setblocking(False)
            accept = loop.create_task(listen.accept_on(listening, Made, refused=lambda _: None))
            await asyncio.sleep(0)
            client.connect(listening.getsockname())
            for _ in range(turns):
                await asyncio.sleep(0)
            accept.cancel()
            await asyncio.wait([accept])
            for transport in made:
                transport.abort()
            await asyncio.sleep(0.01)
            gc.collect()  # a socket that nobody closed is a warning, hence an error

    run(loop_factory, scenario)


def test_nobody_is_dialled_meanwhile(loop_factory: LoopFactory, kept: list[bool]) -> None:
    async def scenario() -> None:
        party, friend = Party(1), Party(2)
        kept.append(True)
        await party.start(friend.address)
        await until(lambda: bool(party.mesh.dialer.dialers and party.mesh.dialer.dialers[0].words))
        assert party.mesh.dialer.dialers[0].words == "this node has no descriptor left to dial with"
        kept.append(False)
        await friend.start()
        await until(lambda: 2 in party.host.open)
        await party.mesh.close()
        await friend.mesh.close()

    run(loop_factory, scenario)


def test_accepting_goes_on_after_there_was_no_descriptor_at_all(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "PAUSE_S", 0.02)

    async def scenario() -> None:
        party = Party(1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = socket.socket()
        fillers: list[int] = []
        await party.start()
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012
                while True:
                    fillers.append(os.dup(waiting.fileno()))
            waiting.connect((party.address.host, party.address.port))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not list(party.mesh._handshakes)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)
        await until(lambda: len(party.mesh._handshakes) == 1)
        waiting.close()
        await party.mesh.close()

    run(loop_factory, scenario)
