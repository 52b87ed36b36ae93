"""An owner from which nothing more comes, though it is linked: others are given what it has not covered."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.events import HandOver
from p2psgd.core.owners.owners import PENDING_MAX, Owners
from tests.core.cluster import Cluster, initial_coordinates, own_update

PLACE = 4500  # a weight that node 2 of three owns
MAGNITUDE = 3


def owners_of(cluster: Cluster, number: int) -> Owners:
    owners = cluster.replica(number).owners
    assert owners is not None
    return owners


def added_up(cluster: Cluster) -> int:
    """What the weight has in the replica and at all owners beyond its initial value."""
    found = int(cluster.replica(0).lattice.coordinates[PLACE]) - int(initial_coordinates()[PLACE])
    for number in range(3):
        aggregator = owners_of(cluster, number).aggregator
        begin, end = aggregator.range
        found += int(aggregator.residual[PLACE - begin]) if begin <= PLACE < end else 0
        found += aggregator._outside.get(PLACE, 0)
    return found


def test_a_silent_owner_holds_up_no_trainer_and_what_it_was_given_counts_once(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(3, mode="owners")
    cluster.found()
    cluster.stuck = {(2, 0), (2, 1)}  # what others send reaches it, and it adds that up
    given = PENDING_MAX + 1
    for _ in range(given):
        cluster.give(0, own_update([PLACE], magnitude=MAGNITUDE))
    assert owners_of(cluster, 0).full
    cluster.tick(cluster.replica(0).timing.failure_timeout_s)
    assert not owners_of(cluster, 0).full
    assert owners_of(cluster, 0).waiting == owners_of(cluster, 0).waiting_bytes == 0  # others cover it
    assert cluster.replica(2).me in cluster.replica(0).peers
    words = "node-2 does not answer, and another node owns its weights 3,333 to 4,999 until it is back"
    said = [(number, each.startswith(words)) for number, each in cluster.noted("owners")]
    assert said == [(0, True), (1, True)]
    cluster.stuck.clear()
    cluster.tick(2.0)
    assert owners_of(cluster, 0).waiting == 0
    assert added_up(cluster) == given * MAGNITUDE


def test_an_owner_that_leaves_holds_up_no_trainer_while_it_waits_for_acknowledgements(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(3, mode="owners")
    cluster.found()
    cluster.give(2, HandOver())  # and no GOODBYE: a peer may be slow to acknowledge what it has published
    cluster.settle()
    given = PENDING_MAX + 1
    for _ in range(given):
        cluster.give(0, own_update([PLACE], magnitude=MAGNITUDE))
    cluster.tick(2.0)
    assert cluster.replica(2).ready
    assert owners_of(cluster, 0).waiting == 0
    assert added_up(cluster) == given * MAGNITUDE
