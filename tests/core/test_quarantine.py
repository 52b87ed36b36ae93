"""Memory that has changed: found by the scrub, mended from the checkpoint and the log, or else by a donor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from p2psgd.core.effects import Reload
from p2psgd.core.events import CheckpointDue, CheckpointRead, Resumed, TimePassed
from p2psgd.core.replica import Replica
from tests.core.cluster import Cluster, own_update

Clusters = Callable[..., Cluster]
PLACE, BIT = 1234, 1 << 9
UNUSABLE = "the weights cannot be rebuilt from the checkpoint and the log: "


def trained(clusters: Clusters, size: int, *, checkpoint: bool = True) -> tuple[Cluster, Replica]:
    """Nodes that have each made five updates, three of them since node 0's checkpoint; and node 0."""
    cluster = clusters(size)
    if size > 1:
        cluster.found()
    cluster.train(list(range(size)), 2)
    if checkpoint:
        cluster.give(0, CheckpointDue())
    cluster.train(list(range(size)), 3)
    return cluster, cluster.replica(0)


def flip(replica: Replica, places: Sequence[int] = (PLACE,)) -> None:
    replica.lattice.coordinates[list(places)] ^= BIT


def find(cluster: Cluster) -> None:
    """Have node 0's scrub come round."""
    cluster.replica(0).scanner.scrub_due = cluster.now
    for _ in range(70):
        cluster.now += 0.1
        cluster.give(0, TimePassed())
    cluster.settle()


def named(replica: Replica, place: int = PLACE) -> str:
    right, quantum = int(replica.lattice.coordinates[place]), replica.spec.quantum
    wrong = right ^ BIT
    return f"{replica.spec.name_coordinate(place)} was {wrong * quantum:g} instead of {right * quantum:g}"


@pytest.mark.parametrize("size", [1, 3])
def test_a_node_mends_itself_from_its_checkpoint_and_its_log(clusters: Clusters, size: int) -> None:
    cluster, hurt = trained(clusters, size)
    rows = hurt.frontier.rows()
    flip(hurt)
    find(cluster)
    assert hurt.lattice.recompute_digest() == hurt.lattice.digest
    assert hurt.lattice.magnitude_max == np.abs(hurt.lattice.coordinates).max()
    assert hurt.frontier.rows() == rows
    words = f"the weights were rebuilt from the last checkpoint and {3 * size} updates since"
    assert cluster.noted("mended") == [(0, f"{words}: {named(hurt)}")]
    counters = hurt.counters
    assert (counters.quarantines, counters.mendings, counters.snapshots_taken) == (1, 1, 0)
    assert hurt.ready
    assert not cluster.halts
    cluster.train(list(range(size)), 2)
    cluster.assert_converged()
    find(cluster)
    assert counters.quarantines == 1


@pytest.mark.usefixtures("small_pieces")
def test_it_goes_on_in_pieces_while_updates_come(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psgd.core.quarantine.SLICE", 1000)
    monkeypatch.setattr("p2psgd.core.quarantine.PIECE_WORDS", 700)  # two updates
    cluster, hurt = trained(clusters, 3)
    cluster.paused = {0}
    flip(hurt, [3, 2500, 4999])
    find(cluster)
    assert hurt.waiting_for().endswith("rebuilding them from the checkpoint and the log")
    turns, reloaded = 0, False
    while not reloaded:
        turns += 1
        reloaded = any(isinstance(effect, Reload) for effect in cluster.give(0, Resumed()))
        cluster.give(1, own_update([turns, 2500, 4990], steps=5 + turns))
        cluster.settle()
        assert hurt.frontier.sequence(cluster.replica(1).me) == 5 + turns
    assert hurt.lattice.magnitude_max == np.abs(hurt.lattice.coordinates).max()
    assert turns == 3 + 5  # three updates or a fifth of the weights in each
    [(_, told)] = cluster.noted("mended")
    assert told.count(" instead of ") == 3
    assert f"since: {hurt.spec.name_coordinate(3)} was " in told
    cluster.paused = set()
    cluster.tick(3)
    assert hurt.ready
    cluster.assert_converged()


@pytest.mark.parametrize("what", ["row", "running digest"])
def test_a_digest_that_was_wrong_is_mended_like_a_weight(clusters: Clusters, what: str) -> None:
    cluster, hurt = trained(clusters, 1)
    digest = hurt.lattice.digest
    if what == "row":
        sequence, wrong, steps = hurt.frontier._rows[hurt.me]
        hurt.frontier._rows[hurt.me] = (sequence, wrong ^ BIT, steps)
    else:
        hurt.lattice.digest ^= BIT
    find(cluster)
    [(_, words)] = cluster.noted("mended")
    assert words.endswith("since: no weight was wrong, but the digest kept of them")
    assert hurt.lattice.digest == digest
    assert hurt.state.fits(hurt.frontier.rows(), digest)


def test_a_lone_node_without_a_checkpoint_ends_to_be_started_again(clusters: Clusters) -> None:
    cluster, hurt = trained(clusters, 1, checkpoint=False)
    flip(hurt)
    find(cluster)
    assert cluster.noted("quarantine")[1:] == [(0, f"{UNUSABLE}there is no checkpoint that can be used")]
    assert all((halt.again, halt.abandon) == (True, False) for _, halt in cluster.halts)
    assert cluster.halts[0][1].words.endswith("there is no usable checkpoint; after a restart it begins anew")
    flip(hurt)


def trim_log(cluster: Cluster) -> None:
    cluster.lose_log(0)
    cluster.train([0], 1)


def test_a_lone_node_with_a_checkpoint_says_that_it_goes_on_from_it(clusters: Clusters) -> None:
    cluster, hurt = trained(clusters, 1)
    trim_log(cluster)
    flip(hurt)
    find(cluster)
    assert cluster.halts[0][1].words.endswith("after a restart it continues from its checkpoint")
    flip(hurt)


def damage_log(cluster: Cluster) -> None:
    lane = cluster.replica(0).log._origin_logs[cluster.replica(0).me]
    frame = lane.entries[-1]
    assert isinstance(frame, bytes)
    lane.entries[-1] = frame[:-1] + bytes([frame[-1] ^ 1])


def damage_checkpoint(cluster: Cluster) -> None:
    saved = cluster.checkpoints[0]
    assert saved is not None
    saved.coordinates[7] += 1


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (trim_log, "update 3 of 0000000000000001 cannot be read from the log"),
        (damage_log, "update 5 of 0000000000000001 is damaged in the log: the update's checksum"),
        (damage_checkpoint, "the rebuilt weights are wrong as well"),
    ],
)
def test_what_it_cannot_mend_itself_a_donor_mends(
    clusters: Clusters, harm: Callable[[Cluster], None], why: str
) -> None:
    cluster, hurt = trained(clusters, 3)
    harm(cluster)
    flip(hurt)
    find(cluster)
    assert cluster.noted("quarantine")[1][1].startswith(f"{UNUSABLE}{why}")
    assert not hurt.node.repairing
    cluster.tick(10)
    assert hurt.counters.snapshots_taken == 1
    assert cluster.noted("mended") == [(0, named(hurt))]
    assert hurt.ready
    assert not cluster.halts
    cluster.assert_converged()


@pytest.mark.parametrize("answer", [True, False])
def test_while_it_mends_itself_no_donor_is_asked(clusters: Clusters, *, answer: bool) -> None:
    cluster, hurt = trained(clusters, 3)
    cluster.slow_disks = {0}
    flip(hurt)
    find(cluster)
    cluster.tick(50)
    assert not cluster.halts
    assert hurt.counters.snapshots_taken + hurt.counters.mendings == 0
    if answer:
        cluster.give(0, CheckpointRead(None))
    cluster.tick(20)  # a disk that does not answer is waited for 12 failure timeouts
    assert hurt.counters.snapshots_taken == 1
    assert hurt.ready
    before = hurt.lattice.coordinates
    cluster.give(0, CheckpointRead(cluster.read_checkpoint(0)))  # nobody waits for it any more
    assert hurt.lattice.coordinates is before
    assert hurt.counters.mendings == 0


def test_what_it_was_giving_is_withdrawn(clusters: Clusters) -> None:
    cluster, hurt = trained(clusters, 3)
    cluster.slow_disks = {0}
    cluster.stuck = {(0, 1)}
    asker = hurt.peers[cluster.replica(1).me]
    asker.credit = 1
    hurt.server.give(asker, cluster.now)
    cluster.give(0, Resumed())
    assert hurt.counters.snapshots_given == 1
    flip(hurt)
    find(cluster)
    assert asker.feed is None
    assert any(b"not complete" in frame for frame in cluster.queues[0, 1])
    cluster.stuck = set()
    cluster.give(0, CheckpointRead(cluster.read_checkpoint(0)))
    cluster.tick(10)
    assert np.array_equal(hurt.lattice.coordinates, cluster.replica(1).lattice.coordinates)
    cluster.assert_converged()


def test_it_catches_up_however_many_updates_come(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psgd.core.quarantine.PIECE_WORDS", 1)
    cluster, hurt = trained(clusters, 2)
    flip(hurt)
    cluster.paused = {0}
    hurt.scanner.scrub_due = cluster.now
    while not hurt.node.quarantined:
        cluster.tick(0.5)
    for turn in range(40):
        for index in range(5):
            cluster.give(1, own_update([index, 4000 + turn]))
        while cluster.deliver(1, 0):
            pass
        cluster.give(0, Resumed())
    assert hurt.counters.mendings == 1


def test_what_it_made_is_let_go_if_a_snapshot_comes_first(clusters: Clusters) -> None:
    cluster, hurt = trained(clusters, 2)
    cluster.paused = {0}
    flip(hurt)
    hurt.scanner.scrub_due = cluster.now
    while not hurt.node.quarantined:
        cluster.tick(0.5)
    begun = hurt._quarantine.rebuild is not None
    hurt.node.release()  # as when a snapshot was taken
    cluster.tick(0.5)
    hurt.node.quarantine(cluster.now)
    assert (begun, hurt._quarantine.rebuild) == (True, None)
    flip(hurt)  # back again
