"""Who is let in to greet while strangers with many addresses take all the room."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from p2psgd.net.address import Address
from p2psgd.net.admission import HANDSHAKES_MAX, UNKNOWN_BURST
from tests import DEADLINE_S
from tests.conftest import LoopFactory
from tests.net.parties import Party, run, until
from tests.ports import free_ports
from tests.siege import Siege, besieged, connecting_from, loopback_addresses

HOSTS = 48
MANY_HOSTS = 240
NODES_BEHIND_ONE_ADDRESS = 64


@contextlib.asynccontextmanager
async def ended(*parties: Party) -> AsyncIterator[None]:
    """They end also if the test fails."""
    try:
        yield
    finally:
        for party in parties:
            await party.mesh.close()
            party.listening.close()


async def until_full(party: Party, siege: Siege) -> None:
    """There is no room left, and others are turned away."""
    await until(lambda: siege.tried > 2 * HOSTS and len(party.mesh._handshakes) == HANDSHAKES_MAX)


def test_a_newcomer_gets_in_though_the_hosts_of_one_attacker_hold_all_the_room(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        party, newcomer = Party(1), Party(2)
        async with ended(newcomer, party):
            await party.start()
            with besieged(party.address, loopback_addresses(HOSTS)) as siege:
                await until_full(party, siege)
                await newcomer.start(party.address)
                await until(lambda: 2 in party.host.open)

    run(loop_factory, scenario)


@pytest.mark.parametrize("how", ["listed", "told", "linked before"])
def test_whoever_is_expected_gets_in_at_once_however_many_hosts_the_attacker_has(
    loop_factory: LoopFactory, how: str
) -> None:
    async def scenario() -> None:
        party, expected = Party(1), Party(2)
        async with ended(expected, party):
            await party.start(*[Address("127.0.0.1", port) for port in free_ports(how == "listed")])
            if how == "told":
                party.mesh.known_hosts.told = ["::ffff:127.0.0.1"]
            if how == "linked before":
                first = Party(3)
                async with ended(first):
                    await first.start(party.address)
                    await until(lambda: 3 in party.host.open)
            with besieged(party.address, loopback_addresses(MANY_HOSTS)) as siege:
                await until_full(party, siege)
                await expected.start(party.address)
                await until(lambda: 2 in party.host.open)
            assert expected.mesh.dialer.dialers[0].words == ""  # it was never turned away

    run(loop_factory, scenario)


def test_a_host_that_connects_too_often_is_turned_away_and_counted_and_others_are_not(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        party, newcomer = Party(1), Party(2)
        async with ended(newcomer, party):
            await party.start()
            for _ in range(UNKNOWN_BURST + 10):
                reader, writer = await asyncio.open_connection(
                    party.address.host, party.address.port, local_addr=("127.0.0.2", 0)
                )
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(reader.read(), 10)
                writer.close()
            assert party.mesh.dropped["frame type"] + party.mesh.dropped["frame length"] <= UNKNOWN_BURST + 9
            assert 1 <= party.mesh.dropped["greeting rate"] <= 10
            await newcomer.start(party.address)
            await until(lambda: 2 in party.host.open)

    run(loop_factory, scenario)


def test_many_nodes_behind_one_address_link_and_link_again_after_all_links_were_lost(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        hub = Party(1)
        others = [Party(node) for node in range(2, 2 + NODES_BEHIND_ONE_ADDRESS)]
        async with ended(*others, hub):
            await hub.start()
            for other in others:
                await other.start(hub.address)
            await until(lambda: len(hub.host.open) == len(others))
            for _ in range(3):
                opened = hub.host.opened
                for link in [*hub.mesh.links.values()]:
                    link.connection.abort("cut")
                await until(lambda: hub.host.opened == opened + len(others))  # noqa: B023
            assert hub.mesh.dropped["greeting rate"] == 0

    run(loop_factory, scenario)


def test_silence_of_a_known_host_leaves_room_for_strangers(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, stranger = Party(1), Party(2)
        async with ended(stranger, party), contextlib.AsyncExitStack() as silent:
            await party.start(Address("127.0.0.2", free_ports(1)[0]))
            for _ in range(HANDSHAKES_MAX):
                connecting = silent.enter_context(connecting_from("127.0.0.2"))
                with contextlib.suppress(BlockingIOError):
                    connecting.connect((party.address.host, party.address.port))
            await until(lambda: len(party.mesh._handshakes) == HANDSHAKES_MAX)
            await stranger.start(party.address)
            await until(lambda: 2 in party.host.open)

    run(loop_factory, scenario)


def test_the_silent_hosts_that_are_displaced_are_hung_up_on_and_counted(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, newcomer = Party(1), Party(2)
        async with ended(newcomer, party), contextlib.AsyncExitStack() as silent:
            await party.start()
            ends: list[socket.socket] = []
            for source in loopback_addresses(HANDSHAKES_MAX):
                ends.append(silent.enter_context(connecting_from(source)))
                with contextlib.suppress(BlockingIOError):
                    ends[-1].connect((party.address.host, party.address.port))
                await until(lambda: len(party.mesh._handshakes) == len(ends))
            await newcomer.start(party.address)
            await until(lambda: 2 in party.host.open)
            assert party.mesh.dropped["displaced"] == 1
            ends[0].setblocking(True)
            ends[0].settimeout(DEADLINE_S)
            with contextlib.suppress(ConnectionResetError):
                assert ends[0].recv(1) == b""  # the oldest

    run(loop_factory, scenario)
