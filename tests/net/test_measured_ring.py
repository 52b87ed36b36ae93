"""Four machines of which some pairs are joined by slow links only: a ring that measures goes around those."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ring.contenders import p2psgd_ring
from benchmarks.ring.hosts import Host
from tests.daemons import Daemon, assert_replicas_identical
from tests.lan import Lan

NODES = [f"node-{number}" for number in range(4)]  # their ids are in this order


def ring_of(daemon: Daemon) -> dict[str, Any]:
    ring: dict[str, Any] = (daemon.status() or {})["ring"]
    return ring


@pytest.mark.root
@pytest.mark.parametrize("slow", [((0, 1), (2, 3)), ((0, 3), (1, 2))], ids=str)
def test_the_ring_goes_around_slow_links(tmp_path: Path, slow: tuple[tuple[int, int], ...]) -> None:
    with Lan(4, rate="100mbit") as lan:
        for pair in slow:
            lan.set_pair(*pair, "5mbit")
        hosts = [
            Host(address, "eth0", tuple(lan.within(number))) for number, address in enumerate(lan.addresses)
        ]
        ring = p2psgd_ring(hosts, 10_000, tmp_path / "ring", order="measured", patience_s=5)
        with ring as (trainers, daemons):
            trainers.round("round", "together", "0")
            assert_replicas_identical(daemons)
            rings = dict(zip(NODES, map(ring_of, daemons), strict=True))
    orders = {tuple(told["order"]) for told in rings.values()}
    assert len(orders) == 1, rings
    (order,) = orders
    assert (order[0], sorted(order)) == (NODES[0], NODES)
    assert {told["order_by"] for told in rings.values()} == {"measured"}
    avoided = {frozenset((NODES[one], NODES[other])) for one, other in slow}
    neighbours = {frozenset(pair) for pair in pairwise([*order, order[0]])}
    assert not avoided & neighbours, rings
    for node, told in rings.items():
        rates = {link["node"]: link["bytes_per_s"] for link in told["links"]}
        assert set(rates) == {*NODES} - {node}
        (far,) = (other for pair in avoided if node in pair for other in pair - {node})
        assert rates[far] == min(rates.values()), rings
