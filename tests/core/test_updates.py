"""Own and peers' updates: applied once, by everybody, whatever the order."""

from __future__ import annotations

from collections.abc import Callable

from p2psgd.core.effects import Persist
from p2psgd.core.events import FrameReceived, LinkOpened, NodeStopping, UpdateBody
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.wire import codec
from p2psgd.wire.reject import RejectCode
from p2psgd.wire.update import pack_update
from tests.core.cluster import WEIGHTS, Cluster, initial_coordinates, own_update, sample_update

Clusters = Callable[..., Cluster]


def test_an_own_update_reaches_every_linked_peer_and_its_trainer(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1, 7, 4999]))
    cluster.settle()
    cluster.assert_converged()
    assert cluster.delivered == [0, 1, 1]
    before = cluster.replica(1).spec
    assert cluster.replica(1).lattice.coordinates[7] == -WEIGHTS // 2 + 7 + 3
    assert before.weights == WEIGHTS


def test_an_own_update_is_persisted_once_and_those_of_others_are_not(clusters: Clusters) -> None:
    cluster = clusters(1)
    cluster.give(0, own_update([1, 7]))
    frame = cluster.replica(0).log.frame(cluster.replica(0).me, 1)
    assert frame is not None
    me, peer = Origin(9, 1), cluster.replica(0).me
    replica = Replica(cluster.spec, me=me, coordinates=initial_coordinates())
    replica.handle(LinkOpened(peer, "node-0"), 0.0)
    own = replica.handle(own_update([2, 3]), 0.0)
    theirs = [replica.handle(FrameReceived(peer, UpdateBody(frame[5:])), 0.0) for _ in range(2)]
    records = [[effect for effect in effects if isinstance(effect, Persist)] for effects in (own, *theirs)]
    mine = replica.log.frame(me, 1)
    assert mine is not None
    assert records == [[Persist(mine)], [], []]


def test_updates_that_cross_leave_equal_bits_in_any_order(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    for number in range(3):
        for turn in range(5):
            cluster.give(
                number,
                own_update([turn, 10 + number, 100], magnitude=1 + number + turn, negative=turn % 2 == 0),
            )
    cluster.settle()
    cluster.assert_converged()
    assert cluster.replica(0).tally.applied == 10


def test_a_link_that_comes_back_resumes_from_the_frontier(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1]))
    cluster.settle()
    cluster.give(0, own_update([2]))
    cluster.cut(0, 1)  # the second update is lost on its way
    cluster.give(0, own_update([3]))
    cluster.give(1, own_update([4]))
    cluster.link_all()
    cluster.settle()
    cluster.assert_converged()
    assert cluster.replica(1).tally.applied == 3
    assert cluster.replica(1).tally.duplicates == 0


def test_a_duplicate_changes_nothing_and_is_counted(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1, 2]))
    frame = cluster.queues[0, 1][0]
    cluster.settle()
    digest = cluster.replica(1).lattice.digest
    assert cluster.give(1, FrameReceived(cluster.replica(0).me, UpdateBody(frame[5:]))) == []
    assert cluster.replica(1).tally.duplicates == 1
    assert cluster.replica(1).lattice.digest == digest


def test_a_node_that_stops_acknowledges_all_it_has_first(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([5]))
    cluster.settle()
    assert cluster.replica(0).tally.acknowledged == 0  # not yet due
    cluster.give(1, NodeStopping())
    cluster.settle()
    assert cluster.replica(0).tally.acknowledged == 1


def test_a_link_on_which_nothing_comes_is_dropped(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    cluster.tick(21.0)
    number, drop = cluster.drops[0]
    assert (number, drop.code) == (1, RejectCode.SILENT)


def test_a_weight_past_what_float32_holds_is_named(clusters: Clusters) -> None:
    cluster = clusters(1)
    for _ in range(9):
        cluster.give(0, own_update([4100], magnitude=codec.MAGNITUDE_MAX))
    assert len(cluster.alarms) == 1
    assert "output[100]" in cluster.alarms[0]
    for _ in range(8):
        cluster.give(0, own_update([4100], magnitude=codec.MAGNITUDE_MAX))
    assert "output[100]" in cluster.halts[0][1].words
    assert "2^-20" in cluster.halts[0][1].words


def test_the_same_update_unharmed_is_applied(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    header, payload = sample_update(cluster)
    cluster.give(1, FrameReceived(cluster.replica(0).me, UpdateBody(pack_update(header, payload))))
    assert cluster.replica(1).tally.applied == 1
