"""A snapshot that lacks much: what only the joiner has is applied to it bit by bit, and shown all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from p2psgd.core.effects import Send, Yield
from p2psgd.core.events import FrameReceived, Resumed, SnapshotStart, TimePassed
from p2psgd.core.replica import Replica
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import SnapshotEnd
from p2psgd.wire.reject import RejectCode
from tests.core.cluster import Cluster, own_update
from tests.core.test_snapshots import deliver_until, fall_behind, silenced

Clusters = Callable[..., Cluster]


@pytest.fixture
def adopting(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Node 2 has a whole snapshot that lacks six updates of its own, and applies one of them in a turn."""
    monkeypatch.setattr("p2psgd.core.snapshot_install.BYTES_PER_TURN", 1)
    cluster = fall_behind(clusters, 2)
    cluster.paused = {2}
    cluster.link_all()
    joiner = cluster.replica(2)
    deliver_until(cluster, lambda: joiner.fetch.taking.donor is not None)
    with silenced(joiner):
        for start in range(6):
            cluster.give(2, own_update([start, 4000]))
        deliver_until(cluster, lambda: joiner.fetch.taking.adoption is not None)
    return cluster


def shown(replica: Replica) -> tuple[object, ...]:
    return (
        replica.frontier.rows(),
        replica.lattice.digest,
        replica.lattice.coordinates.tobytes(),
        len(replica.log),
    )


def test_until_all_is_in_the_replica_stays_as_it_was(adopting: Cluster) -> None:
    joiner, before = adopting.replica(2), shown(adopting.replica(2))
    turns = 0
    while joiner.fetch.taking.adoption is not None:
        assert shown(joiner) == before
        effects = adopting.give(2, Resumed())
        turns += 1
        assert Yield() in effects or joiner.fetch.taking.adoption is None
    assert turns >= 5
    assert joiner.counters.reapplied == 6
    assert joiner.frontier.sequence(joiner.me) == 8
    assert shown(joiner) != before
    adopting.paused = set()
    adopting.give(2, Resumed())
    adopting.tick(5)
    adopting.assert_converged()
    assert adopting.replica(0).frontier.sequence(joiner.me) == 8


def test_what_is_made_or_comes_meanwhile_is_in_it_once(adopting: Cluster) -> None:
    joiner = adopting.replica(2)
    while joiner.fetch.taking.adoption is not None:
        adopting.give(2, own_update([7, 4900]))
        adopting.give(2, Resumed())
    assert joiner.sequence == 8 + joiner.counters.reapplied - 6
    adopting.paused = set()
    adopting.give(2, Resumed())
    adopting.tick(5)
    adopting.assert_converged()


def test_it_needs_the_donor_no_more_and_asks_nobody_else(adopting: Cluster) -> None:
    joiner = adopting.replica(2)
    donor = joiner.fetch.taking.donor
    assert donor is not None
    adopting.kill(donor.node - 1)
    for _ in range(10):
        adopting.now += 0.4
        effects = adopting.give(2, TimePassed())
        sent = [effect.frame[4] for effect in effects if isinstance(effect, Send)]
        assert FrameType.SNAPSHOT_REQUEST not in sent
    assert joiner.fetch.taking.donor == donor
    while joiner.fetch.taking.adoption is not None:
        adopting.give(2, Resumed())
    assert joiner.counters.snapshots_taken == 1


@pytest.mark.parametrize("what", [SnapshotEnd(reason="", tail=0), SnapshotStart([], 0)], ids=type)
def test_a_donor_that_says_more_is_dropped_and_harms_nothing(
    adopting: Cluster, what: SnapshotEnd | SnapshotStart
) -> None:
    joiner = adopting.replica(2)
    donor = joiner.fetch.taking.donor
    assert donor is not None
    adopting.give(2, FrameReceived(donor, what))
    assert [(number, drop.code) for number, drop in adopting.drops] == [(2, RejectCode.SNAPSHOT)]
    while joiner.fetch.taking.adoption is not None:
        adopting.give(2, Resumed())
    assert joiner.counters.snapshots_taken == 1


def test_what_cannot_be_read_again_ends_it_with_nothing_changed(
    adopting: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    joiner = adopting.replica(2)
    adopting.give(2, Resumed())
    before = shown(joiner)[:3]
    monkeypatch.setattr(joiner.log, "frame", lambda *_: None)
    adopting.give(2, Resumed())
    assert shown(joiner)[:3] == before
    assert joiner.fetch.taking.donor is None
    assert "cannot be read from the log" in adopting.alarms[-1]


def test_of_a_donor_that_leaves_the_view_none_is_taken(adopting: Cluster) -> None:
    """A newcomer may count on a STATUS with the new view to show all that this node has given up."""
    joiner, before = adopting.replica(2), shown(adopting.replica(2))
    view, donor = joiner.membership.view, joiner.fetch.taking.donor
    rows = [row for row in zip(view.members, view.since, strict=True) if row[0] != donor]
    members, since = zip(*rows, strict=True)
    joiner.membership.view = dataclasses.replace(view, number=view.number + 1, members=members, since=since)
    adopting.give(2, Resumed())
    assert joiner.fetch.taking.donor is None
    assert shown(joiner) == before


def test_what_is_trimmed_before_it_was_applied_again_ends_it_without_an_alarm(adopting: Cluster) -> None:
    """The members of a later view have it all, and the node went on without the snapshot."""
    joiner = adopting.replica(2)
    adopting.give(2, Resumed())
    before = shown(joiner)[:3]
    adopting.lose_log(2)
    adopting.give(2, Resumed())
    assert shown(joiner)[:3] == before
    assert joiner.fetch.taking.donor is None
    assert adopting.alarms == []
    assert joiner.fetch.taking._resting_until <= adopting.now, "another node may be asked at once"
    while joiner.log.untidy:
        adopting.give(2, Resumed())
    assert joiner.log.bytes_held == 0


def test_what_is_trimmed_meanwhile_leaves_a_log_that_goes_on(adopting: Cluster) -> None:
    joiner = adopting.replica(2)
    for _ in range(4):
        adopting.give(2, Resumed())
    pending = joiner.fetch.taking.adoption
    assert pending is not None
    joiner.log.trim({joiner.me: 4}.get, lambda origin: 0, share=0.0)  # type: ignore[arg-type]
    while joiner.fetch.taking.adoption is not None:
        adopting.give(2, Resumed())
    assert joiner.counters.snapshots_taken == 1
    assert (joiner.log.trimmed_to(joiner.me), joiner.log.last(joiner.me)) == (4, 8)
    adopting.give(2, own_update([7, 4900]))
    adopting.paused = set()
    adopting.give(2, Resumed())
    adopting.tick(5)
    adopting.assert_converged()
