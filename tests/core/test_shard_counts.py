"""Shard counts, the second vector of a replica: what updates may change, and who has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from p2psgd.core.events import CheckpointDue, FrameReceived, UpdateBody
from p2psgd.core.replica import Replica
from p2psgd.wire import codec
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader, pack_update
from tests.core.cluster import WEIGHTS, Cluster, make_words

Clusters = Callable[..., Cluster]

SHARDS = 4
HELD, USED = WEIGHTS, WEIGHTS + SHARDS
LAST = WEIGHTS + 2 * SHARDS - 1


@pytest.fixture
def cluster(clusters: Clusters) -> Cluster:
    """Three nodes; node 0 holds shard 1 and has used shards 0 and 3."""
    cluster = clusters(3, shards=SHARDS, log_budget_bytes=2_000)
    cluster.found()
    count(cluster, HELD + 1, USED, USED + 3)
    cluster.assert_converged()
    return cluster


def count(cluster: Cluster, *indices: int) -> None:
    """Node 0 adds one to these coordinates."""
    words = make_words([5, *indices])
    payload = codec.encode(words, cluster.spec.coordinates)
    cluster.give(0, OwnUpdateMade(1, 1, payload, words))
    cluster.settle()


def counts(replica: Replica) -> list[list[int]]:
    coordinates = replica.lattice.coordinates
    assert coordinates.size == LAST + 1
    found: list[list[int]] = coordinates[WEIGHTS:].reshape(2, SHARDS).tolist()
    return found


def test_an_update_changes_weights_and_counts_everywhere(cluster: Cluster) -> None:
    for replica in cluster.alive():
        assert counts(replica) == [[0, 1, 0, 0], [1, 0, 0, 1]]
        assert replica.lattice.coordinates[5] == cluster.initial()[5] + 1
        assert replica.lattice.recompute_digest() == replica.lattice.digest


@pytest.mark.parametrize(("index", "refused"), [(LAST, []), (LAST + 1, ["payload"])])
def test_an_index_beyond_the_counts_is_refused(cluster: Cluster, index: int, refused: list[str]) -> None:
    origin, replica = cluster.replica(0).me, cluster.replica(1)
    sequence, digest = replica.frontier.at(origin)
    words = make_words([index])
    digest = (digest + codec.digest_words(words, 1, cluster.spec.key)) % 2**64
    header = UpdateHeader(*origin, sequence + 1, digest=digest, steps=2, magnitude=1, count=1)
    before = replica.lattice.coordinates.copy()
    cluster.give(1, FrameReceived(origin, UpdateBody(pack_update(header, codec.encode(words, 2**20)))))
    assert [drop.code.label for _, drop in cluster.drops] == refused
    changed = np.flatnonzero(replica.lattice.coordinates != before)
    assert changed.tolist() == ([] if refused else [index])
    cluster.kill(1)  # node 0 has not made that update: their replicas are not to be compared


def test_a_joiner_gets_the_counts_by_snapshot(cluster: Cluster) -> None:
    cluster.kill(2)
    cluster.train([0, 1], 60)
    count(cluster, HELD + 2)
    back = cluster.boot(2)
    cluster.link_all()
    cluster.tick(30)
    assert back.ready, back.waiting_for()
    assert back.counters.snapshots_taken == 1
    assert counts(back) == [[0, 1, 1, 0], [1, 0, 0, 1]]
    cluster.assert_converged()


def test_a_restarted_node_has_the_counts_of_its_checkpoint_and_of_its_own_updates(cluster: Cluster) -> None:
    cluster.give(0, CheckpointDue())
    count(cluster, USED + 2)
    cluster.kill(0)
    assert counts(cluster.boot(0, from_disk=True)) == [[0, 1, 0, 0], [1, 0, 1, 1]]


def test_a_count_that_memory_has_changed_is_named_as_one(clusters: Clusters) -> None:
    cluster = clusters(3, shards=SHARDS)
    cluster.found()
    hurt = cluster.replica(2)
    hurt.lattice.coordinates[USED + 1] += 7
    cluster.tick(110)
    told = [words for _, words in cluster.noted("mended")]
    assert told == ["the count of uses of shard 1 was 7 instead of 0"]
    assert counts(hurt) == [[0] * 4] * 2
