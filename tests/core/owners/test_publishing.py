"""When an owner publishes without rounds: soon enough that no trainer waits for others, else seldom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.events import TimePassed
from p2psgd.core.owners.owners import PENDING_MAX, PUBLISH_S, Owners
from tests.core.cluster import Cluster, own_update
from tests.core.owners.test_custody import ADAGRAD, gradient

OF_NODE_0, OF_NODE_2 = 10, 4500  # weights, of three nodes


def owners_of(cluster: Cluster, number: int) -> Owners:
    owners = cluster.replica(number).owners
    assert owners is not None
    return owners


def test_one_trainer_among_many_members_without_one_waits_for_none(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(PENDING_MAX + 2, mode="owners")
    cluster.found()
    for step in range(2 * PENDING_MAX):
        cluster.now += PUBLISH_S / (3 * PENDING_MAX)
        cluster.give(0, own_update([OF_NODE_0, OF_NODE_2], steps=step + 1))
        cluster.settle()
        assert not owners_of(cluster, 0).full


def test_what_came_goes_out_half_a_second_after_the_last_publication_and_not_with_each_tick(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(3, mode="owners")
    cluster.found()
    cluster.tick(PUBLISH_S)
    cluster.give(0, own_update([OF_NODE_2]))
    cluster.settle()
    published = []
    for _ in range(3):
        cluster.now += 0.4 * PUBLISH_S
        cluster.give(2, TimePassed())
        published.append(cluster.replica(2).sequence)
    assert published == [0, 0, 1]


@pytest.mark.parametrize("mode", ["owners", ADAGRAD])
def test_a_node_tells_a_step_when_updates_of_all_owners_that_were_given_it_are_here(
    clusters: Callable[..., Cluster], mode: str
) -> None:
    # Else a peer that waits for the step could save its model without what another owner has not published.
    cluster = clusters(3, mode=mode)
    cluster.found()
    made = gradient([OF_NODE_0, OF_NODE_2]) if mode == ADAGRAD else own_update([OF_NODE_0, OF_NODE_2])
    cluster.give(0, made)
    cluster.now += PUBLISH_S
    cluster.give(0, TimePassed())
    assert cluster.replica(0).sequence == 1
    assert owners_of(cluster, 0).covered_steps() == 0
    cluster.settle()
    cluster.tick(PUBLISH_S)
    cluster.tick(PUBLISH_S)
    steps_seen_by_others = cluster.replica(1).frontier.steps()[cluster.replica(0).me.node]
    assert owners_of(cluster, 0).covered_steps() == steps_seen_by_others == 1
