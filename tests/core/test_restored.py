"""A start from the disk: the checkpoint, and the own updates made since."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.events import CheckpointDue, CheckpointWritten
from p2psgd.core.replica import Replica
from tests.core.cluster import Cluster, own_update

Clusters = Callable[..., Cluster]


def checkpointed(clusters: Clusters) -> Cluster:
    """Node 0 has a checkpoint with five updates of each node, has made three since, and lost its power."""
    cluster = clusters(2)
    cluster.found()
    cluster.train([0, 1], 5)
    cluster.give(0, CheckpointDue())
    cluster.train([0, 1], 3)
    return cluster


def restart(cluster: Cluster) -> tuple[Replica, Replica]:
    before = cluster.replica(0)
    cluster.kill(0)
    return before, cluster.boot(0, from_disk=True)


def test_what_comes_back_is_the_checkpoint_and_the_own_updates_since(clusters: Clusters) -> None:
    before, after = restart(checkpointed(clusters))
    other = next(origin for origin in before.frontier if origin != before.me)
    assert after.frontier.sequence(before.me) == 8
    assert after.frontier.sequence(other) == 5
    assert after.frontier.digest(before.me) == before.frontier.digest(before.me)
    assert after.lattice.recompute_digest() == after.lattice.digest
    assert (after.sequence, after.ready) == (0, False)
    assert after.saved == {before.me: 5, other: 5}


def test_the_initial_digest_follows_from_the_checkpoint(clusters: Clusters) -> None:
    """So that a node can tell a snapshot of its run without ever having seen the initial weights."""
    before, after = restart(checkpointed(clusters))
    assert after.lattice.initial_digest == before.lattice.initial_digest
    assert after.state.fits(before.frontier.rows(), before.lattice.digest)


def test_its_log_holds_the_tail_and_what_came_after(clusters: Clusters) -> None:
    before, after = restart(checkpointed(clusters))
    assert after.log.trimmed_to(before.me) == 0  # node 1 has no checkpoint: all was in the tail
    assert [after.log.frame(before.me, number) for number in range(1, 9)] == [
        before.log.frame(before.me, number) for number in range(1, 9)
    ]


def test_what_every_member_has_on_disk_is_not_in_the_tail(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.found()
    cluster.train([0, 1], 5)
    cluster.give(1, CheckpointDue())
    cluster.tick(3)
    cluster.train([0, 1], 2)
    cluster.give(0, CheckpointDue())
    checkpoint = cluster.checkpoints[0]
    assert checkpoint is not None
    assert len(checkpoint.tail) == 4
    before, after = restart(cluster)
    assert after.log.trimmed_to(before.me) == 5


def test_own_updates_that_do_not_follow_are_left_out(clusters: Clusters) -> None:
    cluster = checkpointed(clusters)
    del cluster.own[0][1]
    before, after = restart(cluster)
    assert after.frontier.sequence(before.me) == 6
    assert after.lattice.recompute_digest() == after.lattice.digest


def test_own_updates_that_the_checkpoint_holds_already_are_not_applied_twice(clusters: Clusters) -> None:
    cluster = checkpointed(clusters)
    replica = cluster.replica(0)
    frames = [replica.log.frame(replica.me, number) for number in range(1, 9)]
    cluster.own[0] = [frame for frame in frames if frame is not None]
    before, after = restart(cluster)
    assert after.lattice.recompute_digest() == after.lattice.digest
    assert after.frontier.sequence(before.me) == 8


def test_a_restarted_node_brings_back_its_own_and_gets_the_others(clusters: Clusters) -> None:
    cluster = checkpointed(clusters)
    cluster.cut(0, 1)
    cluster.give(0, own_update([4, 4500]))  # nobody else has it
    _, after = restart(cluster)
    cluster.link_all()
    cluster.tick(10)
    assert after.ready
    cluster.assert_converged()
    assert sum(row.sequence for row in cluster.replica(1).frontier.rows()) == 17


def test_a_checkpoint_that_could_not_be_written_acknowledges_nothing(clusters: Clusters) -> None:
    cluster = clusters(1)
    cluster.paused = {0}
    replica = cluster.replica(0)
    replica.handle(own_update([1]), cluster.now)
    replica.handle(CheckpointWritten(written=True), cluster.now)  # of none
    assert replica.saved == {}
    cluster.paused = set()
    cluster.give(0, CheckpointDue())
    assert replica.saved == {replica.me: 1}
    replica.handle(own_update([2]), cluster.now)
    replica.handle(CheckpointDue(), cluster.now)
    replica.scanner.turn()
    replica.handle(CheckpointWritten(written=False), cluster.now)
    assert replica.saved == {replica.me: 1}
