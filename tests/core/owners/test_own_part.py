"""A node contributes to its own range as well."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.cluster import Cluster, own_update


def test_contributions_that_add_up_to_nothing_wait_for_no_update(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(2, mode="owners")
    cluster.found()
    replica = cluster.replica(0)
    assert replica.owners is not None
    cluster.give(0, own_update([5]))
    cluster.tick(0.5)
    before = replica.sequence
    cluster.give(0, own_update([7]))
    cluster.give(0, own_update([7], negative=True))
    assert replica.owners.waiting == 2
    cluster.tick(0.5)
    assert replica.owners.waiting == 0
    assert replica.sequence == before
    assert (replica.trainer_weights() == replica.lattice.coordinates).all()
