"""Links over real sockets on loopback, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import msgpack
import pytest

from p2psgd.core.frontier import Origin
from p2psgd.net import admission
from p2psgd.net.address import Address
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.messages import Goodbye, Reject, pack_message
from p2psgd.wire.reject import RejectCode
from tests import DEADLINE_S
from tests.conftest import LoopFactory
from tests.net.parties import Party, linked_parties, run, see_a_life_superseded, settled, stall, until
from tests.wire.versions import LATER_HELLO, OLD_HELLO, OLD_REJECT


def test_four_nodes_that_all_dial_each_other_end_with_one_link_each(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        parties = [Party(node) for node in (4, 1, 3, 2)]
        addresses = [party.address for party in parties]
        for party in parties:
            await party.start(*[address for address in addresses if address != party.address])
        await until(lambda: settled(parties))
        for party in parties:
            for other in parties:
                if other is not party:
                    party.mesh.send(other.origin, pack_message(Goodbye(sequence=party.origin.node)))
        await until(lambda: all(len(party.host.frames) == 3 for party in parties))
        assert all(len(party.mesh.links) == len(party.mesh._by_connection) == 3 for party in parties)
        for party in parties:
            await party.mesh.close()
        assert all(not party.host.open for party in parties)

    run(loop_factory, scenario)


def test_a_second_connection_of_the_same_life_is_not_another_link(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, peer = Party(1), Party(2)
        await party.start()
        greeting = peer.mesh.greeting
        writers = []
        for incarnation in (1, 1, 2):
            _, writer = await asyncio.open_connection(party.address.host, party.address.port)
            writer.write(pack_message(greeting.model_copy(update={"incarnation": incarnation})))
            writers.append(writer)
            await until(lambda: party.host.opened + party.host.replaced == len(writers))
        assert (party.host.opened, party.host.replaced) == (2, 1)
        assert party.host.closed == ["its node has been started again"]
        for writer in writers:
            writer.close()
        await party.mesh.close()
        peer.listening.close()

    run(loop_factory, scenario)


def test_a_peer_that_starts_later_is_found(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        early, late = Party(1), Party(2)
        await early.start(late.address)
        await until(lambda: "refused" in early.mesh.dialer.dialers[0].words)
        await late.start()
        await until(lambda: 2 in early.host.open and 1 in late.host.open)
        await early.mesh.close()
        await late.mesh.close()

    run(loop_factory, scenario)


def test_a_lost_peer_is_dialled_again_when_it_is_back(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        one, two = Party(1), Party(2)
        await one.start(two.address)
        await two.start()
        await until(lambda: 2 in one.host.open)
        port = two.address.port
        await two.mesh.close()
        await until(lambda: 2 not in one.host.open)
        again = Party(2, incarnation=2, port=port)
        await again.start()
        await until(lambda: one.host.open.get(2) == Origin(2, 2))
        await one.mesh.close()
        await again.mesh.close()

    run(loop_factory, scenario)


def test_what_is_ordered_after_the_end_of_a_link_was_sent_is_dropped(loop_factory: LoopFactory) -> None:
    """A peer may well ask for something while this node stops."""

    async def scenario() -> None:
        async with linked_parties() as (one, other):
            one.mesh.links[2].connection.finish("this node stopped")
            one.mesh.send(other.origin, pack_message(Goodbye(sequence=7)))
            await until(lambda: not other.host.open)
            assert not other.host.frames

    run(loop_factory, scenario)


def test_a_link_that_its_peer_has_just_reset_is_finished_without_a_word(loop_factory: LoopFactory) -> None:
    """A node may well stop in the same moment."""

    async def scenario() -> None:
        async with linked_parties() as (one, other):
            theirs = other.mesh.links[1].connection
            assert theirs._transport is not None
            at_once = struct.pack("ii", 1, 0)
            theirs._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, at_once
            )
            theirs.abort("cut")
            await asyncio.sleep(0)  # the reset has arrived, and asyncio has not looked
            one.mesh.links[2].connection.finish("this node stopped")
            await until(lambda: not one.host.open)
            assert one.host.closed == ["this node stopped"]

    run(loop_factory, scenario)


def test_another_run_is_refused_on_both_sides_and_counted(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        one, two = Party(1), Party(2, run=b"s" * 32)
        await one.start(two.address)
        await two.start()
        await until(lambda: bool(one.host.rejections))
        code, words = one.host.rejections[0]
        assert code == RejectCode.RUN
        assert b"r".hex() * 8 in words
        assert b"s".hex() * 8 in words
        assert two.mesh.dropped["run"] >= 1
        assert not one.host.opened
        [(node, words)] = two.host.strangers  # however often it dials
        assert node == 1
        assert [each.words for each in two.mesh.strangers] == [words]
        await one.mesh.close()
        await two.mesh.close()

    run(loop_factory, scenario)


def test_a_node_that_is_linked_is_no_stranger_if_another_says_hello_with_its_id(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        one, two, other = Party(1), Party(2), Party(1, run=b"s" * 32)
        await two.start()
        await one.start(two.address)
        await until(lambda: 1 in two.mesh.links)
        await other.start(two.address)
        await until(lambda: two.mesh.dropped["run"] > 0)
        assert 1 in two.mesh.links
        assert not list(two.mesh.strangers)
        assert not two.host.strangers
        for party in (one, two, other):
            await party.mesh.close()

    run(loop_factory, scenario)


def test_a_node_that_dials_itself_stops_doing_so(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        one = Party(1)
        await one.start(one.address)
        await until(lambda: one.mesh.dialer.dialers[0].ourselves)
        assert not one.host.opened
        await one.mesh.close()

    run(loop_factory, scenario)


def test_a_superseded_life_is_told(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        hub, old, new = Party(1), Party(2, incarnation=1), Party(2, incarnation=2)
        await see_a_life_superseded(hub, old, new)

    run(loop_factory, scenario)


def test_a_life_behind_one_that_is_gone_is_told_above_which_to_go_on(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        hub, before, behind = Party(1), Party(2, incarnation=5), Party(2, incarnation=3)
        await hub.start()
        await before.start(hub.address)
        await until(lambda: 2 in hub.host.open)
        await before.mesh.close()
        await until(lambda: 2 not in hub.host.open)
        await behind.start(hub.address)
        await until(lambda: bool(behind.host.rejections))
        assert (behind.host.rejections[0][0], behind.host.newest[0], behind.host.listed[0]) == (
            RejectCode.BEHIND,
            5,
            True,
        )
        for party in (hub, behind):
            await party.mesh.close()

    run(loop_factory, scenario)


def test_whoever_dials_a_life_behind_tells_it_and_does_not_take_the_refusal_for_its_own(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        hub, behind = Party(1), Party(2, incarnation=3)
        hub.host.members[2] = 5
        await behind.start()
        await hub.start(behind.address)
        await until(lambda: bool(behind.host.rejections))
        assert (behind.host.rejections[0][0], behind.host.newest[0], behind.host.listed[0]) == (
            RejectCode.BEHIND,
            5,
            False,
        )
        assert not hub.host.opened
        assert not hub.host.rejections
        for party in (hub, behind):
            await party.mesh.close()

    run(loop_factory, scenario)


def test_a_life_behind_that_a_hint_led_to_is_told_without_being_sure(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        hub, behind = Party(1), Party(2, incarnation=3)
        hub.host.members[2] = 5
        await hub.start()
        await behind.start()
        behind.mesh.dialer.follow_hints({1: (hub.address,)})
        await until(lambda: bool(behind.host.rejections))
        assert (behind.host.newest[0], behind.host.listed[0]) == (5, False)
        for party in (hub, behind):
            await party.mesh.close()

    run(loop_factory, scenario)


def test_the_life_in_the_view_is_linked_again_though_another_was_for_a_while(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        hub, member, other = Party(1), Party(2, incarnation=3), Party(2, incarnation=5)
        hub.host.members[2] = 3
        await hub.start()
        await other.start(hub.address)
        await until(lambda: hub.host.open.get(2) == Origin(2, 5))
        await other.mesh.close()
        await until(lambda: 2 not in hub.host.open)
        await member.start(hub.address)
        await until(lambda: hub.host.open.get(2) == Origin(2, 3))
        for party in (hub, member):
            await party.mesh.close()

    run(loop_factory, scenario)


def test_links_to_lives_before_those_of_a_new_view_are_closed_with_the_reason(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        hub, behind, member = Party(1), Party(2, incarnation=3), Party(3, incarnation=4)
        await hub.start()
        await behind.start(hub.address)
        await member.start(hub.address)
        await until(lambda: hub.host.open.keys() == {2, 3})
        hub.host.members.update({2: 5, 3: 4})
        hub.mesh.drop_former_incarnations(hub.host.members)
        await until(lambda: bool(behind.host.rejections) and not behind.host.open)
        assert (behind.host.rejections[0][0], behind.host.newest[0]) == (RejectCode.BEHIND, 5)
        assert hub.host.open == {3: Origin(3, 4)}
        for party in (hub, behind, member):
            await party.mesh.close()

    run(loop_factory, scenario)


@pytest.mark.parametrize("code", [RejectCode.SELF, RejectCode.SUPERSEDED, RejectCode.BEHIND])
def test_a_liar_at_a_known_address_ends_nothing(loop_factory: LoopFactory, code: RejectCode) -> None:
    async def scenario() -> None:
        party, friend = Party(1), Party(2)

        async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack_message(Reject(node=77, code=code, details="a lie", incarnation=0)))
            writer.close()

        liar = await asyncio.start_server(lie, "127.0.0.1", 0)
        await party.start(Address("127.0.0.1", liar.sockets[0].getsockname()[1]), friend.address)
        await friend.start()
        await until(lambda: 2 in party.host.open and party.mesh.dialer.dialers[0].words == "a lie")
        assert not party.mesh.dialer.dialers[0].ourselves
        liar.close()
        await party.mesh.close()
        await friend.mesh.close()

    run(loop_factory, scenario)


def test_silent_addresses_do_not_use_up_the_room_for_peers(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(admission.HANDSHAKES_MAX + 4)]
        party, friend = Party(1), Party(2)
        await party.start(*[Address("127.0.0.1", end.getsockname()[1]) for end in silent])
        await until(lambda: len(party.mesh._handshakes) == len(silent))
        await friend.start(party.address)
        await until(lambda: 2 in party.host.open)
        await party.mesh.close()
        await friend.mesh.close()
        for end in silent:
            end.close()

    run(loop_factory, scenario)


GARBAGE = {
    "text": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame"),
    "length": (struct.pack("<IB", 2**32 - 1, 1), "frame length"),
    "zero": (struct.pack("<IB", 0, 1), "frame length"),
    "type": (struct.pack("<IB", 5, 200) + b"hello", "frame type"),
    "update first": (pack_frame(FrameType.UPDATE, bytes(64)), "frame order"),
    "no map": (pack_frame(FrameType.HELLO, b"\xc1"), "message"),
    "no reject": (pack_frame(FrameType.REJECT, b"\x90"), "message"),
    "reject first": (pack_frame(FrameType.REJECT, b"\x80"), "frame order"),
    "another protocol": (pack_frame(FrameType.HELLO, msgpack.packb(OLD_HELLO)), "protocol"),
    "a later protocol": (pack_frame(FrameType.HELLO, msgpack.packb(LATER_HELLO)), "protocol"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_stranger_that_sends_garbage_is_dropped_and_counted(loop_factory: LoopFactory, what: str) -> None:
    async def scenario() -> None:
        async with linked_parties() as (party, _):
            data, reason = GARBAGE[what]
            reader, writer = await asyncio.open_connection(party.address.host, party.address.port)
            writer.write(data)
            await asyncio.wait_for(reader.read(), 10)  # it says why, then closes
            writer.close()
            assert [count for kind, count in party.mesh.dropped.items() if kind.startswith(reason)] == [1]
            assert 2 in party.host.open

    run(loop_factory, scenario)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            pack_frame(FrameType.WELCOME, msgpack.packb(OLD_HELLO)),
            RejectCode.PROTOCOL,
            "protocol 1 there, 3 here: install the same p2psgd on both",
        ),
        (
            pack_frame(FrameType.REJECT, msgpack.packb(OLD_REJECT)),
            RejectCode.OTHER,
            "rejected by a peer of another protocol version",
        ),
    ],
    ids=["welcome", "reject"],
)
def test_what_a_dialled_peer_of_another_version_answers_is_judged(
    loop_factory: LoopFactory, answer: bytes, code: RejectCode, words: str
) -> None:
    async def scenario() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await reader.read()
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            party = Party(1)
            place = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            await party.start(place)
            await until(lambda: bool(party.host.rejections))
            assert party.host.rejections[0] == (code, f"{place}: {words}")
            assert party.host.listed[0]
            await party.mesh.close()

    run(loop_factory, scenario)


def test_strangers_that_say_nothing_are_capped_and_timed_out(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HANDSHAKE_TIMEOUT_S", 3.0)  # all come before the first has had its time

    async def scenario() -> None:
        party = Party(1)
        await party.start()
        where = party.address.host, party.address.port
        streams = await asyncio.gather(*(asyncio.open_connection(*where) for _ in range(40)))
        ends = await asyncio.gather(*(reader.read() for reader, _ in streams), return_exceptions=True)
        assert len(ends) == 40
        assert party.mesh.dropped["too many greetings"] == 40 - admission.HANDSHAKES_MAX
        assert party.mesh.dropped["no greeting"] == admission.HANDSHAKES_MAX
        for _, writer in streams:
            writer.close()
        await party.mesh.close()

    run(loop_factory, scenario)


def test_one_host_that_says_nothing_does_not_keep_others_out(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        party, friend = Party(1), Party(2)
        await party.start()
        silent = [
            socket.create_connection(
                (party.address.host, party.address.port), source_address=("127.0.0.2", 0)
            )
            for _ in range(admission.HANDSHAKES_MAX)
        ]
        await until(lambda: len(party.mesh._handshakes) == len(silent))
        await friend.start(party.address)
        await until(lambda: 2 in party.host.open)
        assert party.mesh.dropped == {"displaced": 1}
        silent[0].settimeout(DEADLINE_S)
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""
        for end in silent:
            end.close()
        await friend.mesh.close()
        await party.mesh.close()

    run(loop_factory, scenario)


def test_a_peer_that_reads_nothing_fills_a_bounded_buffer_and_drains_later(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        async with linked_parties() as (fast, slow):
            stalled, link = stall(slow, 1), fast.mesh.links[2].connection
            frame = pack_frame(FrameType.STATUS, bytes(50_000))
            sent = 0
            while link.writable:
                fast.mesh.send(slow.origin, frame)
                sent += 1
                await asyncio.sleep(0)
            fast.mesh.report_drained(slow.origin)
            await asyncio.sleep(0.05)
            assert fast.host.drained == 0
            stalled.resume_reading()
            await until(lambda: fast.host.drained == 1 and len(slow.host.frames) == sent)

    run(loop_factory, scenario)


def test_what_is_remembered_of_nodes_that_came_and_went_is_bounded(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node ids cost nobody anything. Members and linked nodes are kept, and so is what all links carried."""
    monkeypatch.setattr("p2psgd.net.mesh.NEWS_MAX", 4)

    async def scenario() -> None:
        party, peer = Party(1), Party(2)
        party.host.members = {2: 1}
        await party.start()
        sent = [0]
        for node in (2, 3, 4, 5, 6):
            hello = peer.mesh.greeting.model_copy(update={"node": node})
            _, writer = await asyncio.open_connection(party.address.host, party.address.port)
            writer.write(pack_message(hello))
            await until(lambda: node in party.mesh.links)  # noqa: B023 (it is called before the next)
            sent.append(party.mesh.bytes_received)
            if node != 6:
                writer.close()
                await until(lambda: node not in party.mesh.links)  # noqa: B023
        assert party.mesh.news.keys() == {2, 6}
        assert sent == sorted(set(sent))
        writer.close()
        await party.mesh.close()
        peer.listening.close()

    run(loop_factory, scenario)
