"""What others tell of nodes' addresses: bounded, of members only, and kept across a restart."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.net.address import Address
from p2psgd.net.peer_exchange import (
    NAME,
    NEARBY_MAX,
    NODES_MAX,
    TOLD_MAX,
    AddressHints,
    ip_of,
    may_tell,
    pack_known_peers,
    read_known_peers,
)

HERE, THERE = Address("10.0.0.1", 7315), Address("2001:db8::1", 7316)


def test_members_are_dialled_where_they_were_told_of_last_first() -> None:
    hints = AddressHints()
    for node, address in ((1, HERE), (1, THERE), (2, HERE), (3, HERE), (1, HERE)):
        hints.tell(node, address)
    assert hints.wanted({1, 2, 9}, me=2) == {1: (HERE, THERE)}


def test_a_node_has_few_addresses_and_those_told_last_stay() -> None:
    hints = AddressHints()
    for port in range(1, 100):
        hints.tell(1, Address("10.0.0.1", port))
    assert [each.port for each in hints.wanted({1}, me=0)[1]] == [99, 98, 97, 96]
    assert len(hints.told()) == TOLD_MAX


def test_a_liar_that_tells_of_ever_more_nodes_fills_a_bounded_table() -> None:
    hints = AddressHints()
    for node in range(3 * NODES_MAX):
        hints.tell(node, HERE)
        hints.see(node, [HERE])
    assert len(hints.told()) == NODES_MAX
    assert len(hints.wanted((), me=0)) == NEARBY_MAX - 1  # one is this node
    hints.keep({5})
    assert hints.told() == [(5, HERE)]


def test_a_node_that_left_the_local_network_is_no_longer_dialled() -> None:
    hints = AddressHints()
    assert hints.see(1, [HERE])
    before = hints.version
    assert hints.see(1, [HERE])
    assert hints.version == before
    assert hints.see(1, [])
    assert hints.version > before
    assert not hints.wanted((), me=0)


@pytest.mark.parametrize(
    ("ip", "to", "told"),
    [
        ("10.0.0.1", "10.0.0.2", True),
        ("127.0.0.1", "10.0.0.2", False),
        ("127.0.0.1", "::1", True),
        ("127.0.0.1", None, False),
        ("fe80::1", "::1", False),
        ("169.254.1.1", "10.0.0.2", False),
        ("2001:db8::1", None, True),
    ],
)
def test_an_address_is_told_where_it_means_the_same(ip: str, to: str | None, *, told: bool) -> None:
    seen = None if to is None else ipaddress.ip_address(to)
    assert may_tell(ipaddress.ip_address(ip), to=seen) is told


def test_a_name_has_no_ip_address() -> None:
    assert ip_of(Address("alpha", 1)) is None
    assert ip_of(THERE) == ipaddress.ip_address("2001:db8::1")


def test_what_was_told_survives_a_restart(tmp_path: Path) -> None:
    before, after = AddressHints(), AddressHints()
    before.tell(1, HERE)
    before.tell(2**64 - 1, THERE)
    before.tell(1, THERE)
    (tmp_path / NAME).write_bytes(pack_known_peers(before.told()))
    read_known_peers(tmp_path, after)
    assert after.told() == before.told()


@given(st.one_of(st.binary(max_size=300), st.text("#:[]. 0af\n", max_size=200).map(str.encode)))
def test_a_damaged_file_is_passed_over(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / NAME).write_bytes(content)
    hints = AddressHints()
    read_known_peers(folder, hints)
    assert len(hints.told()) <= len(content)


def test_a_file_that_is_missing_or_too_large_is_passed_over(tmp_path: Path) -> None:
    hints = AddressHints()
    read_known_peers(tmp_path, hints)
    (tmp_path / NAME).write_bytes(b"10.0.0.1:1  # 0000000000000001\n" * 10**5)
    read_known_peers(tmp_path, hints)
    assert not hints.told()
