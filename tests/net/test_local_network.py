"""What an announcement on the local network must be, to be one of a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psgd.net.address import Address
from p2psgd.net.mdns import Sighting, read_announcement
from p2psgd.net.peer_exchange import TOLD_MAX

HERE = Address("0.0.0.0", 7315)
RUN = bytes(range(32))
RIGHT: dict[bytes, bytes | None] = {b"id": b"00000000000000a1", b"run": RUN.hex().encode()}


def test_a_nodes_announcement_tells_who_is_where_in_which_run() -> None:
    sighting = read_announcement(RIGHT, ["10.0.0.1", "2001:db8::1"], 7000, here=HERE)
    assert sighting == Sighting(0xA1, RUN, (Address("10.0.0.1", 7000), Address("2001:db8::1", 7000)))


def test_addresses_that_cannot_be_dialled_are_left_out() -> None:
    places = ["fe80::1", "fe80::2%3", "127.0.0.1", "224.0.0.1", "0.0.0.0", "::ffff:10.0.0.1"]
    hosts = [each.host for each in read_announcement(RIGHT, places, 7000, here=HERE).host]
    assert hosts == ["10.0.0.1", "fe80::2%3"]
    on_loopback = read_announcement(RIGHT, places, 7000, here=Address("127.0.0.1", 1)).host
    assert Address("127.0.0.1", 7000) in on_loopback


def test_of_very_many_addresses_few_are_taken() -> None:
    places = [f"10.0.{n // 256}.{n % 256}" for n in range(60000)]
    assert len(read_announcement(RIGHT, places, 7000, here=HERE).host) == TOLD_MAX


@pytest.mark.parametrize(
    ("changes", "places", "port"),
    [
        ({b"id": None}, ["10.0.0.1"], 7000),
        ({b"id": b"A" * 16}, ["10.0.0.1"], 7000),
        ({b"id": b"a" * 17}, ["10.0.0.1"], 7000),
        ({b"id": "\u0661".encode() * 8}, ["10.0.0.1"], 7000),
        ({b"run": b"a" * 63}, ["10.0.0.1"], 7000),
        ({b"run": None}, ["10.0.0.1"], 7000),
        ({}, [], 7000),
        ({}, ["127.0.0.1"], 7000),
        ({}, ["10.0.0.1"], None),
        ({}, ["10.0.0.1"], 0),
        ({}, ["10.0.0.1"], 65536),
        ({}, ["ten"], 7000),
    ],
)
def test_what_is_no_nodes_announcement(
    changes: dict[bytes, bytes | None], places: list[str], port: int | None
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_announcement({**RIGHT, **changes}, places, port, here=HERE)


@given(
    st.dictionaries(st.sampled_from([b"id", b"run", b"x"]), st.one_of(st.none(), st.binary(max_size=80))),
    st.lists(st.one_of(st.ip_addresses().map(str), st.text(max_size=20)), max_size=5),
    st.one_of(st.none(), st.integers(-1, 70000)),
)
def test_any_announcement_is_read_or_refused(
    properties: dict[bytes, bytes | None], places: list[str], port: int | None
) -> None:
    try:
        sighting = read_announcement(properties, places, port, here=HERE)
    except ValueError:
        return
    assert sighting.host
