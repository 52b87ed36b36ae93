"""What a node that was removed for good may still do on a link: bring a view, for one failure timeout."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from p2psgd.core.acks import NEVER
from p2psgd.core.effects import Drop, Effect, Send
from p2psgd.core.events import (
    Event,
    FrameReceived,
    LinkDrained,
    LinkOpened,
    RemovalRequested,
    TimePassed,
    UpdateBody,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.view import View
from p2psgd.wire.frames import PREFIX, FrameType
from p2psgd.wire.messages import (
    ConfirmedRow,
    Fetch,
    FrontierRow,
    Goodbye,
    Prepare,
    SnapshotEnd,
    SnapshotRequest,
    Trimmed,
    parse_message,
)
from p2psgd.wire.reject import RejectCode
from tests.core.cluster import Cluster, own_update, status_of

Clusters = Callable[..., Cluster]
FAILURE_TIMEOUT_S = 5.0
OUT = Origin(3, 2)  # the removed node's next life


@pytest.fixture
def cluster(clusters: Clusters) -> Cluster:
    """Two members that know of node 3 that it was removed for good; its process runs and is not linked."""
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1, 2], 3)
    cluster.kill(2)
    cluster.give(0, RemovalRequested(3, forbid=True))
    cluster.tick(3)
    assert cluster.replica(0).membership.view.forbidden == {3}
    cluster.boot(2)
    assert cluster.replica(2).me == OUT
    return cluster


def open_link(cluster: Cluster) -> None:
    """Node 0 takes the removed node's link; nobody answers for that node but the test."""
    cluster.queues[0, 2] = deque()
    cluster.give(0, LinkOpened(OUT, "node-2"))


def sent(effects: list[Effect], to: Origin) -> list[FrameType]:
    """The types of the frames that go there."""
    return [FrameType(each.frame[4]) for each in effects if isinstance(each, Send) and each.peer == to]


def dropped(effects: list[Effect]) -> list[tuple[RejectCode, str]]:
    return [(each.code, each.details) for each in effects if isinstance(each, Drop)]


def rows_of(cluster: Cluster) -> list[FrontierRow]:
    return cluster.replica(0).frontier.rows()


def made_by_it(cluster: Cluster) -> bytes:
    """The body of an update that the removed node makes."""
    replica = cluster.replica(2)
    replica.handle(own_update([5, 9]), cluster.now)
    frame = replica.log.frame(replica.me, replica.sequence)
    assert frame is not None
    return frame[PREFIX.size :]


@pytest.mark.parametrize("claimed", [0, 1, 2**31])
def test_nothing_of_its_status_counts_whatever_view_it_claims(cluster: Cluster, claimed: int) -> None:
    open_link(cluster)
    replica, stopped = cluster.replica(0), cluster.replica(1).me
    before = replica.acks.all_applied(stopped)
    own = replica.sequence
    cluster.give(0, own_update([1, 2]))
    rows = [row._replace(least=row.sequence) for row in rows_of(cluster)]  # everybody has all, it says
    claim = status_of(OUT, rows, view=claimed, confirmed=[ConfirmedRow(*stopped, 2)])
    effects = cluster.give(0, claim)
    assert not dropped(effects)
    peer = replica.peers[OUT]
    assert peer.status is None
    assert replica.acks.applied(stopped, replica.me) <= own
    assert replica.acks.all_applied(stopped) == before
    assert replica.acks.heard(OUT) == NEVER


def test_its_updates_and_questions_are_not_answered(cluster: Cluster) -> None:
    open_link(cluster)
    cluster.give(0, status_of(OUT, rows_of(cluster), view=0))
    replica = cluster.replica(0)
    version = replica.frontier.version
    asked: list[Event] = [
        FrameReceived(OUT, UpdateBody(made_by_it(cluster))),
        FrameReceived(OUT, Fetch(node=replica.me.node, incarnation=replica.me.incarnation, first=1, last=3)),
        FrameReceived(
            OUT,
            Trimmed(
                node=cluster.replica(1).me.node, incarnation=cluster.replica(1).me.incarnation, trimmed_to=9
            ),
        ),
        FrameReceived(OUT, SnapshotRequest(view=0)),
        FrameReceived(OUT, Prepare(view=3, round=9, node=3)),
        FrameReceived(OUT, Goodbye(sequence=0)),
    ]
    for event in asked:
        effects = cluster.give(0, event)
        assert not sent(effects, OUT), event
        assert not dropped(effects)
    assert replica.frontier.version == version
    assert replica.scanner.copying is None
    cluster.give(0, own_update([7]))
    assert FrameType.UPDATE not in {FrameType(frame[4]) for frame in cluster.queues[0, 2]}


def test_it_is_told_the_view_and_its_link_ends_once_it_knows_it(cluster: Cluster) -> None:
    open_link(cluster)
    assert sent(cluster.give(0, status_of(OUT, [], view=1)), OUT) == [FrameType.VIEW]
    ((code, _),) = dropped(cluster.give(0, status_of(OUT, [], view=2)))
    assert code is RejectCode.FORBIDDEN


def test_its_link_ends_after_a_failure_timeout_without_a_new_view(cluster: Cluster) -> None:
    open_link(cluster)
    for _ in range(9):
        cluster.now += 0.5
        cluster.give(0, status_of(OUT, [], view=0))
    cluster.tick(0.5)
    assert not cluster.drops
    cluster.tick(0.5)
    words = "node-2 was removed from the run for good, and brought no view for 5 s"
    assert cluster.drops == [(0, Drop(OUT, RejectCode.FORBIDDEN, words))]


def test_a_view_far_beyond_ends_its_link_at_once(cluster: Cluster) -> None:
    open_link(cluster)
    ((code, words),) = dropped(cluster.give(0, status_of(OUT, [], view=2**62)))
    assert code is RejectCode.VIEW
    assert str(2**62) in words


def test_a_view_that_it_brings_is_taken_and_gives_it_another_failure_timeout(cluster: Cluster) -> None:
    open_link(cluster)
    view = cluster.replica(0).membership.view
    cluster.tick(4)
    cluster.give(0, FrameReceived(OUT, view.replace({}, set(), set()).news()))
    assert cluster.views()[0] == view.number + 1
    cluster.tick(4)
    assert not cluster.drops
    cluster.give(0, FrameReceived(OUT, view.news()))  # an old one is no news
    cluster.tick(1.5)
    assert [drop.code for _, drop in cluster.drops] == [RejectCode.FORBIDDEN]


def test_a_view_that_admits_it_again_is_refused(cluster: Cluster) -> None:
    open_link(cluster)
    known = cluster.replica(0).membership.view
    forged = View(known.number + 1, (*known.members, OUT), frozenset(), known.cluster_id)
    words = "its view 3 no longer forbids a node that view 2 forbids for good"
    assert dropped(cluster.give(0, FrameReceived(OUT, forged.news()))) == [(RejectCode.VIEW, words)]
    assert cluster.replica(0).membership.view is known


def test_who_is_linked_when_it_is_removed_is_out_at_once(clusters: Clusters) -> None:
    """Also what it told of others is void, and the snapshot that it was being given ends."""
    cluster = clusters(4)
    cluster.found()
    cluster.train([0, 1, 2, 3], 2)
    outcast, silent = cluster.replica(3).me, cluster.replica(2).me
    cluster.cut(0, 2)
    cluster.give(0, own_update([4]))
    rows = [row._replace(least=row.sequence) for row in rows_of(cluster)]
    cluster_id = cluster.replica(0).membership.view.cluster_id
    told = [ConfirmedRow(*silent, 1)]
    cluster.give(0, status_of(outcast, rows, view=1, cluster_id=cluster_id, confirmed=told))
    replica = cluster.replica(0)
    assert replica.acks.applied(silent, replica.me) == replica.sequence  # members are believed
    cluster.paused.add(0)
    cluster.give(0, FrameReceived(outcast, SnapshotRequest(view=0)))
    heard = replica.acks.heard(silent)
    cluster.give(
        0, FrameReceived(cluster.replica(1).me, replica.membership.view.replace({}, set(), {4}).news())
    )
    assert replica.peers[outcast].barred_at == cluster.now
    assert replica.acks.applied(silent, replica.me) == 1  # what it said itself
    assert replica.acks.heard(silent) == heard
    assert replica.peers[outcast].status is None
    assert not replica.peers[outcast].cursors
    assert replica.may_leave is False


def test_credit_comes_back_for_what_it_is_still_told(cluster: Cluster) -> None:
    open_link(cluster)
    peer = cluster.replica(0).peers[OUT]
    peer.credit = -1
    assert not sent(cluster.give(0, status_of(OUT, [], view=1)), OUT)
    cluster.give(0, LinkDrained(OUT))
    assert sent(cluster.give(0, status_of(OUT, [], view=1)), OUT) == [FrameType.VIEW]


def test_of_others_only_members_are_believed(clusters: Clusters) -> None:
    """Whoever is not in the view may be linked, and says what it likes."""
    cluster = clusters(3)
    cluster.found()
    cluster.train([0], 2)
    replica, stranger, member = cluster.replica(0), Origin(9, 1), cluster.replica(1).me
    cluster.cut(0, 1)
    cluster.give(0, own_update([4]))
    cluster.queues[0, 8] = deque()
    cluster.give(0, LinkOpened(stranger, "stranger"))
    rows = [row._replace(least=row.sequence) for row in rows_of(cluster)]
    cluster.give(0, status_of(stranger, rows, confirmed=[ConfirmedRow(*member, 1)]))
    assert replica.acks.applied(member, replica.me) < replica.sequence


@pytest.mark.parametrize("needed", [False, True])
def test_a_strangers_claims_neither_keep_nodes_from_snapshots_nor_make_them_ask_for_one(
    clusters: Clusters, needed: bool
) -> None:
    """It has, so it says, updates that no log holds; no member has them, so none could give them."""
    cluster = clusters(3)
    cluster.found()
    cluster.train([0, 1], 5)
    cluster.kill(2)
    joiner, stranger = cluster.boot(2, from_disk=True), Origin(9, 1)
    if needed:
        cluster.lose_log(0)
        cluster.lose_log(1)
    cluster.queues[2, 8] = deque(maxlen=0)  # what is sent to it goes nowhere
    cluster.give(2, LinkOpened(stranger, "stranger"))
    cluster.give(2, status_of(stranger, [FrontierRow(77, 1, 7, 1, trimmed_to=7)]))
    cluster.link_all()
    cluster.tick(3)
    assert joiner.counters.snapshots_taken == needed
    assert joiner.fetch.taking.donor is None
    assert joiner.ready


def test_who_is_told_of_by_another_knows_no_later_view_than_this_node(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    reporter, other = cluster.replica(1).me, cluster.replica(2).me
    cluster_id = cluster.replica(0).membership.view.cluster_id
    status = status_of(reporter, [], view=1, cluster_id=cluster_id, confirmed=[ConfirmedRow(*other, 2**40)])
    cluster.give(0, status)
    assert cluster.replica(0).acks.view(other) == 1


def test_snapshots_are_for_members(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    stranger = Origin(9, 1)
    cluster.queues[0, 8] = deque()
    cluster.give(0, LinkOpened(stranger, "stranger"))
    cluster.give(0, status_of(stranger, []))
    effects = cluster.give(0, FrameReceived(stranger, SnapshotRequest(view=0)))
    assert sent(effects, stranger) == [FrameType.SNAPSHOT_END]
    (frame,) = [each.frame for each in effects if isinstance(each, Send) and each.peer == stranger]
    end = parse_message(FrameType.SNAPSHOT_END, frame[PREFIX.size :])
    assert isinstance(end, SnapshotEnd)
    assert end.reason == "snapshots are for members, and the view known here does not hold you: ask again"
    assert cluster.replica(0).scanner.copying is None


def test_its_updates_are_asked_for_of_others_while_it_is_linked(clusters: Clusters) -> None:
    """What it made before may be lacking here, and it brings nothing any more."""
    cluster = clusters(3)
    cluster.found()
    cluster.cut(0, 2)
    cluster.train([2], 2)
    cluster.kill(2)
    cluster.incarnations[2] -= 1
    outcast = Origin(3, 1)
    cluster.cut(0, 1)
    view = cluster.replica(1).membership.view.replace({}, set(), {3})
    for number in (0, 1):
        replica = cluster.replica(number)
        replica.membership._hear_news(replica.me, view, cluster.now)
        cluster.give(number, TimePassed())
    cluster.queues[0, 2] = deque()
    cluster.stuck.add((0, 2))
    cluster.give(0, LinkOpened(outcast, "node-2"))
    cluster.link(0, 1)
    cluster.tick(2)
    sequences = [replica.frontier.sequence(outcast) for replica in cluster.alive()]
    assert sequences == [2, 2]
