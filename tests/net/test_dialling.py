"""Names that stand for several hosts, lists that change, and hints: who is dialled, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from p2psgd.net import dialer as dialling_module
from p2psgd.net import dialer as line_module
from p2psgd.net.address import Address, Host, UnknownNameError
from tests.conftest import LoopFactory
from tests.net.parties import FAILURE_TIMEOUT_S, Party, agree, run, until

NAME = Address("nodes.example", 7315)


class Names:
    """A resolver whose one name stands for what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host: Host = ()
        self.asked = 0
        monkeypatch.setattr(line_module, "look_up", self.look_up)

    async def look_up(self, address: Address, *, timeout_s: float) -> Host:
        assert address == NAME
        self.asked += 1
        if not self.host:
            raise UnknownNameError("the name does not resolve")
        return self.host


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def test_a_name_that_stands_for_all_nodes_leads_to_each_other_one(
    loop_factory: LoopFactory, names: Names
) -> None:
    async def scenario() -> None:
        parties = [Party(node) for node in (1, 2, 3)]
        names.host = tuple(party.address for party in parties)
        for party in parties:
            await party.start(NAME)
        pairs = [(one, other) for one in parties for other in parties if one is not other]
        await until(lambda: all(agree(one, other) for one, other in pairs))
        assert [party.mesh.dialer.others for party in parties] == [2, 2, 2]
        assert not any(dialler.ourselves for party in parties for dialler in party.mesh.dialer.dialers)
        for party in parties:
            await party.mesh.close()

    run(loop_factory, scenario)


def test_a_name_is_resolved_anew_and_what_it_no_longer_stands_for_keeps_its_link(
    loop_factory: LoopFactory, names: Names
) -> None:
    async def scenario() -> None:
        party, first, second, third = (Party(node) for node in (1, 2, 3, 4))
        await party.start(NAME)
        await until(lambda: party.mesh.dialer.dialers[0].words == "the name does not resolve")
        assert party.mesh.dialer.others == 1
        for peer in (first, second, third):
            await peer.start()
        names.host = first.address, second.address
        await until(lambda: party.mesh.links.keys() == {2, 3})
        names.host = second.address, third.address
        party.mesh.links[3].connection.abort("for the test")  # so that it is looked up again soon
        party.mesh.dialer.follow([], {})
        party.mesh.dialer.follow([NAME], {NAME: 2})
        await until(lambda: party.mesh.links.keys() == {2, 3, 4})
        assert {dialler.node for dialler in party.mesh.dialer.dialers} == {3, 4}
        for each in (party, first, second, third):
            await each.mesh.close()

    run(loop_factory, scenario)


def test_a_host_that_moves_is_found_where_its_name_leads(loop_factory: LoopFactory, names: Names) -> None:
    async def scenario() -> None:
        party, peer = Party(1), Party(2)
        names.host = (Address("127.0.0.1", 1),)
        await party.start(NAME)
        await until(lambda: "refused" in party.mesh.dialer.dialers[0].words)
        assert party.mesh.dialer.dialers[0].words == "connection refused: no node listens there"
        await peer.start()
        names.host = (peer.address,)
        await until(lambda: 2 in party.mesh.links)
        assert party.mesh.dialer.others == 1
        assert party.mesh.news[2].address == str(NAME)
        await peer.mesh.close()
        gone = "connection refused: no node listens there any more"
        await until(lambda: party.mesh.dialer.dialers[0].words == gone)
        await party.mesh.close()

    run(loop_factory, scenario)


def test_the_most_that_a_name_stood_for_are_counted_on_to_found_a_run(
    loop_factory: LoopFactory, names: Names
) -> None:
    async def scenario() -> None:
        party = Party(1)
        names.host = tuple(Address(f"127.0.0.{n}", 1) for n in range(2, 7))
        await party.start(NAME)
        await until(lambda: party.mesh.dialer.others == 5)
        asked = names.asked
        names.host = names.host[:1]
        await until(lambda: names.asked > asked + 1)
        assert party.mesh.dialer.others == 5
        await party.mesh.close()

    run(loop_factory, scenario)


def test_a_line_that_goes_is_no_longer_dialled_and_its_link_stays(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, one, two = Party(1), Party(2), Party(3)
        await one.start()
        await two.start()
        await party.start(one.address)
        await until(lambda: party.mesh.links.keys() == {2})
        party.mesh.dialer.follow([two.address], {})
        await until(lambda: party.mesh.links.keys() == {2, 3})
        assert party.host.opened == 2
        party.mesh.links[2].connection.abort("for the test")
        await until(lambda: 2 not in party.mesh.links)
        await asyncio.sleep(2 * FAILURE_TIMEOUT_S)
        assert party.mesh.links.keys() == {3}
        assert party.mesh.dialer.others == 1
        for each in (party, one, two):
            await each.mesh.close()

    run(loop_factory, scenario)


def test_a_line_that_goes_before_it_was_greeted_is_not_linked_later(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, peer = Party(1), Party(2)
        peer.listening.listen()  # and accepts nobody yet
        await party.start(peer.address)
        await until(lambda: bool(party.mesh._handshakes))
        party.mesh.dialer.follow([], {})
        await peer.start()  # whose answer is on its way at once
        await asyncio.sleep(FAILURE_TIMEOUT_S)
        assert not party.mesh.links
        assert not party.mesh._handshakes
        assert not peer.mesh.links
        await party.mesh.close()
        await peer.mesh.close()

    run(loop_factory, scenario)


def test_two_orders_of_a_list_are_the_same_list(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party = Party(1)
        addresses = [Address("127.0.0.1", port) for port in (1, 2, 3)]
        await party.start(*addresses)
        before = party.mesh.dialer.dialers
        party.mesh.dialer.follow(addresses[::-1], {})
        assert party.mesh.dialer.dialers == before
        await party.mesh.close()

    run(loop_factory, scenario)


def test_a_node_is_reached_by_whichever_of_its_hinted_addresses_is_right(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, peer = Party(1), Party(2)
        await party.start()
        await peer.start()
        party.mesh.dialer.follow_hints({2: (Address("127.0.0.1", 1), party.address, peer.address)})
        await until(lambda: 2 in party.mesh.links)
        assert party.mesh.news[2].address == str(peer.address)
        party.mesh.dialer.follow_hints({})
        assert not party.mesh.dialer.dialers
        assert 2 in party.mesh.links
        await party.mesh.close()
        await peer.mesh.close()

    run(loop_factory, scenario)


def test_a_hint_that_leads_to_another_run_ends_nothing_and_is_counted(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, other, wrong = Party(1), Party(2, run=b"s" * 32), Party(3)
        await party.start()
        await other.start()
        await wrong.start()
        party.mesh.dialer.follow_hints({2: (other.address,), 9: (wrong.address,), 8: (party.address,)})
        await until(lambda: party.mesh.dropped["hint: run"] > 0 and party.mesh.dropped["hint: self"] > 0)
        await until(lambda: 3 in party.mesh.links)  # a node of this run, though not the one expected
        assert not party.host.rejections
        assert not any(dialler.ourselves for dialler in party.mesh.dialer.dialers)
        assert {dialler.node for dialler in party.mesh.dialer.dialers} == {2, 8, 9}
        for each in (party, other, wrong):
            await each.mesh.close()

    run(loop_factory, scenario)


def test_few_hints_are_dialled_at_once(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, silent = Party(1), Party(2)
        silent.listening.listen(64)
        await party.start()
        party.mesh.dialer.follow_hints(dict.fromkeys(range(10, 60), (silent.address,)))
        await until(lambda: len(party.mesh._handshakes) == 16)
        await asyncio.sleep(0.1)
        assert len(party.mesh._handshakes) == 16
        await party.mesh.close()
        silent.listening.close()

    run(loop_factory, scenario)


def test_hints_of_ever_new_nodes_do_not_make_this_node_flood_whoever_is_there(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling_module, "HINT_DIAL_S", 0.5)

    async def scenario() -> None:
        party, loop = Party(1), asyncio.get_running_loop()
        await party.start()
        began = loop.time()
        nowhere = (Address("127.0.0.1", 1),)
        for lot in range(4):
            nodes = range(100 * lot, 100 * lot + dialling_module.HINT_DIALS_MAX)
            party.mesh.dialer.follow_hints(dict.fromkeys(nodes, nowhere))
            await until(lambda: all(dialler.words for dialler in party.mesh.dialer.dialers))
        took_s = loop.time() - began
        await party.mesh.close()
        assert took_s >= 3 * 0.5

    run(loop_factory, scenario)


def test_a_name_that_stood_for_this_node_alone_leads_to_others_later(
    loop_factory: LoopFactory, names: Names
) -> None:
    async def scenario() -> None:
        party, peer = Party(1), Party(2)
        await peer.start()
        names.host = (party.address,)
        await party.mesh.start(party.listening, [NAME], counts={NAME: 0})
        assert all(dialler.ourselves for dialler in party.mesh.dialer.dialers)
        await until(lambda: names.asked > 0)
        assert party.mesh.dialer.others == 0
        names.host = party.address, peer.address
        await until(lambda: 2 in party.mesh.links)
        assert party.mesh.dialer.others == 1
        await party.mesh.close()
        await peer.mesh.close()

    run(loop_factory, scenario)
