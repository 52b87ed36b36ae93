"""What peers tell each other of addresses: to whom, of whom, how often, and what is believed."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.core.frontier import Origin
from p2psgd.core.timing import Timing
from p2psgd.net.address import Address
from p2psgd.net.peer_exchange import HEARD_MAX, AddressHints, PeerExchange
from p2psgd.net.rejections import DropCounters
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import PeerRow, Peers, pack_ip, pack_message, pack_peers, parse_message, parse_peers
from p2psgd.wire.reject import PeerError, RejectCode

TIMING = Timing(1.0)
ME = 1


@dataclass
class Connection:
    remote: Address | None
    dialled: bool


@dataclass
class Link:
    peer: Origin
    connection: Connection


@dataclass
class Links:
    """What the mesh would do."""

    links: dict[int, Link] = field(default_factory=dict)
    dropped: DropCounters = field(default_factory=DropCounters)
    sent: list[tuple[int, Peers]] = field(default_factory=list)
    full: bool = False

    def send(self, peer: Origin, frame: bytes) -> None:
        message = parse_message(FrameType(frame[4]), frame[5:])
        assert isinstance(message, Peers)
        self.sent.append((peer.node, message))

    def takes_more(self, peer: Origin) -> bool:
        return not self.full


class Node:
    """Node 1, linked to others, that tells and hears."""

    def __init__(self, *, advertised: Address | None = None) -> None:
        self.mesh = Links()
        self.hints = AddressHints()
        self.now = 100.0
        self.informed: set[int] = set()
        self.members: set[int] = {ME}
        self.telling = PeerExchange(
            self.mesh,
            self.hints,
            me=ME,
            port=7315,
            advertised=advertised,
            timing=TIMING,
            now=lambda: self.now,
        )

    def link(self, node: int, remote: str, *, dialled: bool = False, member: bool = True) -> None:
        self.mesh.links[node] = Link(Origin(node, 1), Connection(Address(remote, 40000 + node), dialled))
        self.telling.link_opened(Origin(node, 1))
        if member:
            self.informed.add(node)
            self.members.add(node)

    def hear(self, node: int, *rows: PeerRow, port: int = 7315, ip: str = "") -> None:
        packed = pack_ip(ipaddress.ip_address(ip)) if ip else b""
        self.hear_body(node, pack_message(Peers(ip=packed, port=port, peers=pack_peers(rows)))[5:])

    def hear_body(self, node: int, body: bytes) -> None:
        self.telling.hear(Origin(node, 1), body, self.members)

    def tells(self) -> dict[int, Peers]:
        self.mesh.sent.clear()
        self.telling.tick(self.members, lambda peer: peer.node in self.informed)
        return dict(self.mesh.sent)


def row(node: int, ip: str, port: int = 7315) -> PeerRow:
    return PeerRow(node, ipaddress.ip_address(ip), port)


def test_a_peer_is_told_of_members_where_they_listen_as_they_are_seen() -> None:
    node = Node()
    node.link(2, "10.0.0.2")
    node.link(3, "10.0.0.3", dialled=True)
    node.link(4, "10.0.0.4")
    node.link(5, "10.0.0.5", member=False)
    node.hear(2, port=7000)
    node.hear(4, port=7001, ip="203.0.113.4")
    node.hear(5)
    told = node.tells()
    known = [row(2, "10.0.0.2", 7000), row(3, "10.0.0.3", 40003), row(4, "203.0.113.4", 7001)]
    assert parse_peers(told[2].peers) == known
    assert (told[2].ip, told[2].port) == (b"", 7315)
    assert told[5].peers == b""  # it knows no view yet: it may bootstrap one


def test_before_a_view_is_known_nobody_else_is_told_of() -> None:
    node = Node()
    node.link(2, "10.0.0.2", dialled=True)
    node.members = set()
    node.link(3, "10.0.0.3", dialled=True, member=False)
    assert {peer: told.peers for peer, told in node.tells().items()} == {2: b"", 3: b""}


def test_where_a_node_can_be_dialled_from_outside_is_told_if_it_was_given() -> None:
    node = Node(advertised=Address("203.0.113.1", 9))
    node.link(2, "10.0.0.2")
    told = node.tells()[2]
    assert (told.ip, told.port) == (pack_ip(ipaddress.ip_address("203.0.113.1")), 9)


def test_loopback_is_told_on_the_machine_alone() -> None:
    node = Node()
    node.link(2, "127.0.0.1", dialled=True)
    node.link(3, "10.0.0.3", dialled=True)
    node.link(4, "fe80::4%2", dialled=True)
    told = node.tells()
    assert [each.node for each in parse_peers(told[2].peers)] == [2, 3]
    assert [each.node for each in parse_peers(told[3].peers)] == [3]


def test_nothing_is_told_twice_in_a_failure_timeout_and_something_every_twelve() -> None:
    node = Node()
    node.link(2, "10.0.0.2", dialled=True)
    assert node.tells()
    node.link(3, "10.0.0.3", dialled=True)
    assert node.tells().keys() == {3}
    node.now += TIMING.failure_timeout_s
    assert node.tells().keys() == {2}
    node.now += TIMING.failure_timeout_s
    assert not node.tells()
    node.now += TIMING.gone_s
    node.mesh.full = True
    assert not node.tells()
    node.mesh.full = False
    assert node.tells().keys() == {2, 3}


def test_members_are_believed_to_be_where_peers_say_and_others_are_not() -> None:
    node = Node()
    node.link(2, "10.0.0.2")
    node.members |= {3, 4}
    node.hear(2, row(ME, "10.0.0.9"), row(3, "10.0.0.3"), row(4, "127.0.0.1"), row(5, "10.0.0.5"))
    assert node.hints.wanted(range(10), me=ME) == {
        2: (Address("10.0.0.2", 7315),),
        3: (Address("10.0.0.3", 7315),),
    }
    assert node.mesh.dropped == {"address of another machine's own": 1}


def test_a_peer_that_tells_without_end_is_not_read() -> None:
    node = Node()
    node.link(2, "10.0.0.2")
    for port in range(1, 100):
        node.hear(2, port=port)
    assert node.mesh.dropped == {"peers told too often": 99 - HEARD_MAX}
    node.now += TIMING.failure_timeout_s
    node.hear(2, port=7000)
    assert node.hints.wanted({2}, me=ME)[2][0] == Address("10.0.0.2", 7000)


def test_what_is_not_a_whole_table_is_refused() -> None:
    node = Node()
    node.link(2, "10.0.0.2")
    for peers in (bytes(25), bytes(26), pack_peers([row(1, "10.0.0.1")]) * 2):
        body = pack_message(Peers(ip=b"", port=1, peers=peers))[5:]
        with pytest.raises(PeerError) as caught:
            node.hear_body(2, body)
        assert caught.value.code is RejectCode.MESSAGE
        assert not node.hints.told()


@given(st.binary(max_size=200))
def test_any_bytes_are_heard_or_refused(body: bytes) -> None:
    node = Node()
    node.link(2, "10.0.0.2")
    try:
        node.hear_body(2, body)
    except PeerError:
        assert not node.hints.told()


def test_the_end_of_a_link_is_the_end_of_what_it_told() -> None:
    node = Node()
    node.link(2, "10.0.0.2")
    node.telling.link_closed(Origin(2, 1))
    del node.mesh.links[2]
    node.hear(2)
    assert not node.hints.told()
    assert not node.tells()
