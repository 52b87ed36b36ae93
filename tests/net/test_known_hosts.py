"""What the address of a connection tells."""

from __future__ import annotations

import pytest

from p2psgd.net.admission import LINKED_MAX, REFRESH_S, KnownHosts, Standing, host_of


@pytest.mark.parametrize(
    ("ip", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("fe80::2%3", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_64_is_one_host_and_an_ipv4_address_is_one_also_when_mapped(ip: str, host: str) -> None:
    assert host_of(ip) == host


def test_addresses_of_the_list_told_by_peers_and_linked_before_are_known() -> None:
    known = KnownHosts(lambda: ["10.0.0.1", "2001:db8::1", "not resolved"])
    known.told = ["::ffff:10.0.0.2", "2001:DB8:1:0:0::7"]
    known.linked("fe80::5%eth0")
    for ip in ("10.0.0.1", "2001:db8::1", "10.0.0.2", "2001:db8:1::7", "fe80::5%2"):
        assert known.standing(ip, 0.0) is Standing.KNOWN
    for ip in ("10.0.0.3", "2001:db8:0:1::1", "::1", ""):
        assert known.standing(ip, 0.0) is Standing.STRANGER


def test_others_in_the_64_of_a_known_address_are_neighbours() -> None:
    known = KnownHosts(lambda: ["2001:db8::1"])
    known.linked("2001:db8:1::1")
    assert known.standing("2001:db8::2", 0.0) is Standing.NEIGHBOUR
    assert known.standing("2001:db8:1::2", 0.0) is Standing.NEIGHBOUR


def test_a_list_that_has_changed_counts_from_the_next_refresh_on() -> None:
    listed = ["10.0.0.1"]
    known = KnownHosts(lambda: listed)
    assert known.standing("10.0.0.2", 0.0) is Standing.STRANGER
    listed[:] = ["10.0.0.2"]
    assert known.standing("10.0.0.2", REFRESH_S / 2) is Standing.STRANGER
    assert known.standing("10.0.0.2", REFRESH_S) is Standing.KNOWN
    assert known.standing("10.0.0.1", REFRESH_S) is Standing.STRANGER


def test_the_latest_addresses_that_were_linked_are_remembered_and_no_more() -> None:
    known = KnownHosts()
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(LINKED_MAX + 1)]
    for ip in (*addresses[:-1], addresses[0], addresses[-1]):
        known.linked(ip)
    assert known.standing(addresses[0], 0.0) is Standing.KNOWN
    assert known.standing(addresses[1], 0.0) is Standing.STRANGER
    assert known.standing(addresses[-1], 0.0) is Standing.KNOWN
