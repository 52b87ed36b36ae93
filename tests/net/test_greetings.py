"""How often whoever connects may, by what its address tells."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import pytest

from p2psgd.net import admission
from p2psgd.net.admission import HANDSHAKES_MAX, UNKNOWN_BURST, Handshakes, KnownHosts
from p2psgd.net.rejections import DropCounters


@dataclass(eq=False)
class Incoming:
    """What is seen of a connection."""

    host: str
    dialled: bool = False
    certified: None = None

    def abort(self, words: str) -> None:
        pass


def refused(*addresses: str, listed: tuple[str, ...] = ()) -> Counter[str]:
    """What is counted when each of these connects once, one after the other, and is greeted at once."""

    async def scenario() -> Counter[str]:
        dropped = DropCounters()
        awaited = Handshakes[None](dropped, KnownHosts(lambda: listed), lambda connection, error: None)
        for address in addresses:
            connection = cast(Any, Incoming(address))
            awaited.begin(connection, None)
            awaited.end(connection)
        return dropped

    return asyncio.run(scenario())


def test_strangers_of_one_64_have_one_limit() -> None:
    one, other = ([f"fd00:0:0:{net}::{number:x}" for number in range(UNKNOWN_BURST + 3)] for net in (1, 2))
    assert refused(*one) == {"greeting rate": 3}
    assert refused(*one[:UNKNOWN_BURST], *other[:UNKNOWN_BURST]) == {}


def test_known_addresses_have_a_wider_limit_each_and_their_neighbours_one_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "KNOWN_BURST", 5)
    monkeypatch.setattr(admission, "KNOWN_INTERVAL_S", 1000.0)
    known, neighbours = ["fd00::1", "fd00::2"], [f"fd00::a:{number:x}" for number in range(7)]
    assert refused(*(5 * known), *neighbours, listed=tuple(known)) == {"greeting rate": 2}
    assert refused(*(6 * known), listed=tuple(known)) == {"greeting rate": 2}


def test_connections_that_are_greeted_take_no_room() -> None:
    assert refused(*(f"10.0.0.{number}" for number in range(4 * HANDSHAKES_MAX))) == {}
