"""The order of a ring: by node id, or around the slow links."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest

from p2psgd.core.events import LinkMeasured
from p2psgd.core.frontier import Origin
from p2psgd.core.ring.formation import choose_order, cost_of, measure_ring
from p2psgd.wire.ring_messages import LinkRow
from tests.core.ring.cluster import RingCluster

Links = dict[tuple[int, int], tuple[int, int]]  # by pair, the lower first: microseconds and KiB/s


def members(count: int) -> list[Origin]:
    return [Origin(node, 7) for node in range(1, count + 1)]


def told(links: Links) -> dict[Origin, list[LinkRow]]:
    """By the lower of each pair."""
    rows: dict[Origin, list[LinkRow]] = {}
    for (one, other), figures in links.items():
        rows.setdefault(Origin(one, 7), []).append(LinkRow(other, *figures))
    return rows


def two_sites(count: int) -> Links:
    """Odd nodes are at one site and even ones at another, a slow line away."""
    near, far = (200, 100_000), (20_000, 1_000)
    return {
        (one, other): near if (other - one) % 2 == 0 else far
        for one in range(1, count + 1)
        for other in range(one + 1, count + 1)
    }


def crossings(order: Sequence[int]) -> int:
    """How often the ring goes from one site to the other."""
    return sum((one - other) % 2 for one, other in pairwise([*order, order[0]]))


def test_by_node_id_the_head_is_first() -> None:
    assert choose_order(reversed(members(5))) == tuple(members(5))


def test_what_nobody_measured_leaves_it_by_node_id() -> None:
    assert choose_order(members(6), {}) == tuple(members(6))


@pytest.mark.parametrize("count", [4, 6, 9, 40])
def test_a_slow_line_is_crossed_there_and_back(count: int) -> None:
    order = choose_order(members(count), told(two_sites(count)))
    assert order[0] == members(1)[0]
    assert sorted(order) == members(count)
    assert crossings([member.node for member in order]) == 2


@pytest.mark.parametrize("seed", range(20))
def test_it_is_nearly_as_good_as_the_best(seed: int) -> None:
    chance = random.Random(seed)
    links = {
        (one, other): (chance.randrange(100, 50_000), chance.choice([0, 1_000, 100_000]))
        for one in range(1, 8)
        for other in range(one + 1, 8)
    }
    cost = cost_of(told(links))
    head, *others = members(7)
    best = min(measure_ring([head, *rest], cost) for rest in permutations(others))
    found = measure_ring(choose_order(members(7), told(links)), cost)
    assert found[0] <= 1.5 * best[0], (found, best)


def test_of_two_that_differ_the_worse_counts() -> None:
    one, other = members(2)
    cost = cost_of({one: [LinkRow(2, 100, 0)], other: [LinkRow(1, 900, 0)]})
    assert cost(one, other) == cost(other, one) == 450


def test_very_many_stay_in_the_order_of_their_ids() -> None:
    assert choose_order(members(65), told(two_sites(65))) == tuple(members(65))


def measure(cluster: RingCluster, links: Links) -> None:
    for (one, other), (round_trip_us, kib_per_s) in links.items():
        for here, there in ((one, other), (other, one)):
            peer = cluster.replica(there - 1).me
            cluster.give(here - 1, LinkMeasured(peer, round_trip_us, kib_per_s * 1024))


def test_a_measured_ring_goes_around_the_slow_links() -> None:
    cluster = RingCluster(6, mode="ring-sparse-measured")
    cluster.link_all()
    cluster.attach()
    cluster.pass_time(4.0)
    assert cluster.running() == set()
    assert "still measuring" in cluster.waits()[0]
    measure(cluster, two_sites(6))
    cluster.pass_time(2.0)
    assert cluster.running() == set(range(6)), cluster.waits()
    orders = {cluster.ring(number).order for number in range(6)}
    assert len(orders) == 1
    assert {cluster.ring(number).order_by for number in range(6)} == {"measured"}
    order = orders.pop()
    assert order[0] == 1
    assert crossings(order) == 2
    cluster.run(3)
    cluster.assert_all_at(3)


def test_a_ring_that_nobody_measures_forms_all_the_same() -> None:
    cluster = RingCluster(4, mode="ring-sparse-measured")
    cluster.link_all()
    cluster.attach()
    cluster.pass_time(20.0)
    assert cluster.running() == {0, 1, 2, 3}, cluster.waits()
    assert cluster.ring(2).order == (1, 2, 3, 4)
    assert {cluster.ring(number).order_by for number in range(4)} == {"id"}


def test_three_are_a_ring_in_any_order_and_say_that_theirs_is_by_id() -> None:
    cluster = RingCluster(3, mode="ring-sparse-measured")
    cluster.link_all()
    cluster.attach()
    measure(cluster, two_sites(3))
    cluster.pass_time(4.0)
    assert cluster.running() == {0, 1, 2}, cluster.waits()
    assert (cluster.ring(1).order, cluster.ring(1).order_by) == ((1, 2, 3), "id")


def test_no_order_is_told_that_was_not_asked_for() -> None:
    cluster = RingCluster(3)
    cluster.start()
    measure(cluster, {(1, 2): (100, 100)})
    assert cluster.ring(0).state.links == ()
