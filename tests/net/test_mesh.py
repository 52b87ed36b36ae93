"""Links over real sockets on loopback, on both event loops."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from p2psgd.core.frontier import Origin
from p2psgd.discovery.hosts import Address
from p2psgd.net import mesh as mesh_module
from p2psgd.net.mesh import Mesh
from p2psgd.wire.frames import Body, FrameType, pack_frame
from p2psgd.wire.messages import Goodbye, Hello, Reject, pack_message
from tests.conftest import LoopFactory

PATIENCE_S = 0.5


class Host:
    """Writes down what the mesh says, and checks that opened and closed alternate."""

    def __init__(self) -> None:
        self.open: dict[int, Origin] = {}
        self.opened = 0
        self.replaced = 0
        self.closed: list[str] = []
        self.frames: list[tuple[Origin, FrameType, bytes]] = []
        self.drained = 0
        self.refusals: list[tuple[str, str]] = []
        self.strangers: list[tuple[int, str]] = []

    def link_opened(self, peer: Origin, name: str) -> None:
        assert peer.node not in self.open
        self.open[peer.node] = peer
        self.opened += 1

    def link_replaced(self, peer: Origin, name: str) -> None:
        assert self.open[peer.node] == peer
        self.replaced += 1

    def link_closed(self, peer: Origin, words: str) -> None:
        assert self.open.pop(peer.node) == peer
        self.closed.append(words)

    def link_drained(self, peer: Origin) -> None:
        self.drained += 1

    def frame_received(self, peer: Origin, frame_type: FrameType, body: Body) -> None:
        self.frames.append((peer, frame_type, bytes(body)))

    def refused_by_peer(self, code: str, words: str) -> None:
        self.refusals.append((code, words))

    def stranger_met(self, node: int, words: str) -> None:
        self.strangers.append((node, words))


class Party:
    """One mesh with its host and its listening socket."""

    def __init__(self, node: int, *, incarnation: int = 1, run: bytes = b"r" * 32, port: int = 0) -> None:
        self.host = Host()
        self.listening = socket.socket()
        self.listening.setblocking(False)
        self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listening.bind(("127.0.0.1", port))
        self.address = Address("127.0.0.1", self.listening.getsockname()[1])
        self.origin = Origin(node, incarnation)
        greeting = Hello(
            protocol=1,
            node=node,
            incarnation=incarnation,
            name=f"node-{node}",
            run=run,
            weights=1000,
            quantum_log2=-20,
            mode="async",
            label="",
        )
        self.mesh = Mesh(self.host, greeting, PATIENCE_S, time.monotonic)

    async def start(self, *peers: Address) -> None:
        await self.mesh.start(self.listening, peers)


async def until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


def agree(one: Party, other: Party) -> bool:
    """Both sides hold the two ends of one connection as their link to each other."""
    here, there = one.mesh.links.get(other.origin.node), other.mesh.links.get(one.origin.node)
    if here is None or there is None:
        return False
    ends = [link.connection._transport for link in (here, there)]
    names = [
        (end.get_extra_info("sockname"), end.get_extra_info("peername")) for end in ends if end is not None
    ]
    return len(names) == 2 and names[0] == names[1][::-1]


def run(loop_factory: LoopFactory, scenario: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        await scenario()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(body())


def test_four_nodes_that_all_dial_each_other_end_with_one_link_each(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        parties = [Party(node) for node in (4, 1, 3, 2)]
        addresses = [party.address for party in parties]
        for party in parties:
            await party.start(*[address for address in addresses if address != party.address])
        await until(lambda: all(agree(one, other) for one, other in itertools.combinations(parties, 2)))
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
        await until(lambda: "refused" in early.mesh.diallers[0].words)
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
        one, other = Party(1), Party(2)
        await one.start(other.address)
        await other.start()
        await until(lambda: agree(one, other))
        one.mesh.links[2].connection.finish("this node stopped")
        one.mesh.send(other.origin, pack_message(Goodbye(sequence=7)))
        await until(lambda: not other.host.open)
        assert not other.host.frames
        await one.mesh.close()
        await other.mesh.close()

    run(loop_factory, scenario)


def test_another_run_is_refused_on_both_sides_and_counted(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        one, two = Party(1), Party(2, run=b"s" * 32)
        await one.start(two.address)
        await two.start()
        await until(lambda: bool(one.host.refusals))
        code, words = one.host.refusals[0]
        assert code == "run"
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


def test_a_node_that_dials_itself_stops_doing_so(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        one = Party(1)
        await one.start(one.address)
        await until(lambda: one.mesh.diallers[0].ourselves)
        assert not one.host.opened
        await one.mesh.close()

    run(loop_factory, scenario)


def test_a_superseded_life_is_told(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        hub, old, new = Party(1), Party(2, incarnation=1), Party(2, incarnation=2)
        await hub.start()
        await new.start(hub.address)
        await until(lambda: 2 in hub.host.open)
        await old.start(hub.address)
        await until(lambda: bool(old.host.refusals))
        assert old.host.refusals[0][0] == "superseded"
        for party in (hub, old, new):
            await party.mesh.close()

    run(loop_factory, scenario)


@pytest.mark.parametrize("code", ["self", "superseded"])
def test_a_liar_at_a_known_address_ends_nothing(loop_factory: LoopFactory, code: str) -> None:
    async def scenario() -> None:
        party, friend = Party(1), Party(2)

        async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(pack_message(Reject(node=77, code=code, words="a lie")))
            writer.close()

        liar = await asyncio.start_server(lie, "127.0.0.1", 0)
        await party.start(Address("127.0.0.1", liar.sockets[0].getsockname()[1]), friend.address)
        await friend.start()
        await until(lambda: 2 in party.host.open and party.mesh.diallers[0].words == "a lie")
        assert not party.mesh.diallers[0].ourselves
        liar.close()
        await party.mesh.close()
        await friend.mesh.close()

    run(loop_factory, scenario)


def test_silent_addresses_do_not_use_up_the_room_for_peers(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(mesh_module.GREETINGS_MAX + 4)]
        party, friend = Party(1), Party(2)
        await party.start(*[Address("127.0.0.1", end.getsockname()[1]) for end in silent])
        await until(lambda: len(party.mesh._greetings) == len(silent))
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
    "reject first": (pack_frame(FrameType.REJECT, b"\x80"), "message"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_stranger_that_sends_garbage_is_dropped_and_counted(loop_factory: LoopFactory, what: str) -> None:
    async def scenario() -> None:
        party, friend = Party(1), Party(2)
        await party.start()
        await friend.start(party.address)
        await until(lambda: 2 in party.host.open)
        data, reason = GARBAGE[what]
        reader, writer = await asyncio.open_connection(party.address.host, party.address.port)
        writer.write(data)
        await asyncio.wait_for(reader.read(), 10)  # it says why, then closes
        writer.close()
        assert [count for kind, count in party.mesh.dropped.items() if kind.startswith(reason)] == [1]
        assert 2 in party.host.open
        await party.mesh.close()
        await friend.mesh.close()

    run(loop_factory, scenario)


def test_strangers_that_say_nothing_are_capped_and_timed_out(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_module, "GREETING_TIMEOUT_S", 0.5)

    async def scenario() -> None:
        party = Party(1)
        await party.start()
        streams = [await asyncio.open_connection(party.address.host, party.address.port) for _ in range(40)]
        ends = await asyncio.gather(*(reader.read() for reader, _ in streams), return_exceptions=True)
        assert len(ends) == 40
        assert party.mesh.dropped["too many greetings"] == 40 - mesh_module.GREETINGS_MAX
        assert party.mesh.dropped["no greeting"] == mesh_module.GREETINGS_MAX
        for _, writer in streams:
            writer.close()
        await party.mesh.close()

    run(loop_factory, scenario)


def test_a_peer_that_reads_nothing_fills_a_bounded_buffer_and_drains_later(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        fast, slow = Party(1), Party(2)
        await fast.start(slow.address)
        await slow.start()
        await until(lambda: 2 in fast.host.open and 1 in slow.host.open)
        stalled = slow.mesh.links[1].connection
        assert stalled._transport is not None
        stalled._transport.pause_reading()
        frame = pack_frame(FrameType.STATUS, bytes(50_000))
        link = fast.mesh.links[2].connection
        sent = 0
        while link.writable:
            fast.mesh.send(slow.origin, frame)
            sent += 1
            await asyncio.sleep(0)
        fast.mesh.report_drained(slow.origin)
        await asyncio.sleep(0.05)
        assert fast.host.drained == 0
        stalled._transport.resume_reading()
        await until(lambda: fast.host.drained == 1 and len(slow.host.frames) == sent)
        await fast.mesh.close()
        await slow.mesh.close()

    run(loop_factory, scenario)


def chunk_head(numbers: memoryview) -> bytes:
    """What stands before these numbers in a frame whose body has four bytes of a header."""
    body = bytes(4) + bytes(numbers)
    return pack_frame(FrameType.RING_CHUNK, body)[: -len(numbers)]


def test_numbers_go_out_behind_their_head_also_to_a_peer_that_reads_nothing_for_a_while(
    loop_factory: LoopFactory,
) -> None:
    async def scenario() -> None:
        fast, slow = Party(1), Party(2)
        await fast.start(slow.address)
        await slow.start()
        await until(lambda: 2 in fast.host.open and 1 in slow.host.open)
        stalled, link = slow.mesh.links[1].connection, fast.mesh.links[2].connection
        assert stalled._transport is not None
        stalled._transport.pause_reading()
        pieces: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        before = link.bytes_sent
        while link.writable:
            pieces.append(np.full(50_000, len(pieces) % 256, np.uint8))
            fast.mesh.send_numbers(slow.origin, chunk_head(pieces[-1].data), pieces[-1].data)
            await asyncio.sleep(0)
        assert link.bytes_sent - before == sum(len(chunk_head(piece.data)) + len(piece) for piece in pieces)
        stalled._transport.resume_reading()
        await until(lambda: len(slow.host.frames) == len(pieces))
        assert [body[4:] for _, _, body in slow.host.frames] == [piece.tobytes() for piece in pieces]
        await fast.mesh.close()
        await slow.mesh.close()

    run(loop_factory, scenario)


def test_numbers_that_were_not_sent_are_let_go_with_their_link(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        fast, slow = Party(1), Party(2)
        await fast.start(slow.address)
        await slow.start()
        await until(lambda: 2 in fast.host.open and 1 in slow.host.open)
        stalled, link = slow.mesh.links[1].connection, fast.mesh.links[2].connection
        assert stalled._transport is not None
        stalled._transport.pause_reading()
        memory = bytearray(50_000_000)
        with memoryview(memory) as numbers:
            fast.mesh.send_numbers(slow.origin, bytes(20), numbers)
        await asyncio.sleep(0.01)
        fast.mesh.send_numbers(slow.origin, b"", memoryview(b""))  # nothing is nothing
        link.abort("the test ends it")
        await until(lambda: 2 not in fast.host.open)
        await until(lambda: is_free(memory))
        fast.mesh.send_numbers(Origin(9, 9), b"head", memoryview(b"numbers"))  # to nobody
        await fast.mesh.close()
        await slow.mesh.close()

    run(loop_factory, scenario)


def is_free(memory: bytearray) -> bool:
    """Nobody looks at it any more."""
    try:
        memory.append(0)
    except BufferError:
        return False
    return True
