"""What did not come by itself is asked for, from whoever has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p2psgd.core.effects import Send
from p2psgd.core.events import FrameReceived, LinkDrained, TimePassed
from p2psgd.core.frontier import Frontier, Origin
from p2psgd.core.peer import Peer
from p2psgd.core.send import Repair
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import ORIGINS_MAX, FrontierRow, Trimmed
from tests.core.cluster import Cluster, own_update, status_of

Clusters = Callable[..., Cluster]


def test_a_peer_that_missed_an_update_asks_for_it(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    for index in range(3):
        cluster.give(0, own_update([index]))
    del cluster.queues[0, 1][0]  # no TCP does this; a faulty relay might
    cluster.settle()
    cluster.assert_converged()


def test_the_last_update_of_a_lively_origin_is_asked_for_if_it_got_lost(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1]))
    del cluster.queues[0, 1][0]  # nothing follows that would show the gap
    cluster.tick(8.0)
    cluster.assert_converged()


def test_the_last_words_of_a_dead_node_spread_by_whoever_heard_them(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1]))
    assert cluster.deliver(0, 1)  # node 2 never gets it from its origin
    cluster.kill(0)
    cluster.tick(3.0)
    cluster.assert_converged()
    assert cluster.replica(2).tally.applied == 1


def test_nodes_that_cannot_reach_each_other_are_bridged(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 1)
    cluster.link(1, 2)
    cluster.settle()
    for index in range(4):
        cluster.give(0, own_update([index]))
        cluster.give(2, own_update([index]))
        cluster.tick(2.0)
    cluster.assert_converged()


def test_a_silent_origin_is_repaired_by_another_holder(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 2)}
    cluster.give(0, own_update([5]))
    cluster.settle()
    cluster.tick(9.0)  # past failure timeout, before the silent link is closed
    assert cluster.replica(2).frontier.sequence(cluster.replica(0).me) == 1


def test_a_node_that_lost_its_memory_is_replayed_the_whole_run(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    for index in range(20):
        cluster.give(index % 3, own_update([index, 50 + index]))
    cluster.settle()
    cluster.kill(2)
    cluster.boot(2)
    cluster.link_all()
    cluster.give(2, own_update([77]))
    cluster.tick(4.0)
    cluster.assert_converged()
    assert cluster.replica(2).tally.applied == 20  # its own old ones, told by others, included


def test_a_late_node_is_told_by_another_holder_what_the_origin_has_dropped(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 2)
    cluster.settle()
    for index in range(100):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.lose_log(0)
    cluster.link(0, 1)  # node 1 hears TRIMMED from the origin before it knows of node 2
    cluster.settle()
    cluster.link(1, 2)
    cluster.settle()
    cluster.tick(8.0)
    cluster.assert_converged()
    assert cluster.replica(1).counters.snapshots_taken == 0
    for index in range(20):
        cluster.give(0, own_update([200 + index]))
    cluster.tick(2.0)
    cluster.assert_converged()
    assert not cluster.halts


def test_a_gap_that_comes_before_any_status_tells_what_is_missing_is_remembered(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1), (2, 1)}
    for index in range(20):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.lose_log(0)
    origin = cluster.replica(0).me
    cluster.queues[0, 1].clear()
    cluster.give(
        1,
        FrameReceived(
            origin,
            Trimmed(
                node=origin.node,
                incarnation=origin.incarnation,
                trimmed_to=cluster.replica(0).log.trimmed_to(origin),
            ),
        ),
    )
    cluster.give(1, TimePassed())  # no STATUS has said yet that anybody is ahead
    cluster.stuck = set()
    cluster.tick(3.0)
    cluster.assert_converged()


def test_a_log_that_loses_more_than_a_laggard_was_told_tells_it_again(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 2)
    cluster.settle()
    for index in range(100):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.lose_log(0)
    cluster.link(1, 2)
    cluster.link(0, 1)
    while cluster.deliver(1, 0) or cluster.deliver(0, 1):
        pass  # node 1 hears TRIMMED up to 100
    for index in range(100):
        cluster.give(0, own_update([index]))
        cluster.lose_log(0)
        while cluster.deliver(2, 1) or cluster.deliver(1, 2):
            pass  # and is brought past it by node 2, which is behind itself
    cluster.tick(4.0)
    cluster.assert_converged()
    assert not cluster.halts


def test_what_no_log_holds_but_that_of_a_silent_origin_comes_with_a_snapshot(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.found()
    for index in range(100):
        cluster.give(0, own_update([index]))
    while cluster.deliver(0, 2):
        pass
    cluster.stuck = {(0, 1)}
    cluster.lose_log(2)
    cluster.tick(14.0)
    assert cluster.replica(1).counters.snapshots_taken == 1
    assert cluster.replica(1).frontier.sequence(cluster.replica(0).me) == 100
    cluster.stuck = set()  # a hundred duplicates come
    cluster.tick(2.0)
    cluster.assert_converged()
    assert cluster.replica(1).tally.duplicates == 100
    assert not cluster.halts


def test_a_holder_that_brings_nothing_is_passed_over_for_another(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clusters(4)
    for holder in (1, 2):
        cluster.link(0, holder)
    cluster.settle()
    for index in range(5):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.kill(0)
    idle = cluster.replica(1).log_sender  # node 1 has them but sends none
    monkeypatch.setattr(idle, "serve", lambda peer, event, now: None)
    cluster.link(1, 3)
    cluster.tick(1.0)
    cluster.link(2, 3)
    cluster.tick(20.0)
    assert cluster.replica(3).tally.applied == 5


def test_a_gap_that_nobody_asked_about_is_not_believed(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    liar = cluster.replica(0).me
    unknown = Origin(99, 1)
    cluster.give(
        1, FrameReceived(liar, Trimmed(node=unknown.node, incarnation=unknown.incarnation, trimmed_to=5))
    )
    rows = [FrontierRow(*unknown, 5, 1)]
    for _ in range(20):
        cluster.now += 1.0
        cluster.give(1, status_of(liar, rows))
        cluster.give(1, TimePassed())
    assert not cluster.halts


ORIGIN, ASKED, OTHER, THIRD = (Origin(node, 1) for node in (9, 1, 2, 3))


class Search:
    """A node that lacks what comes after update 3 of ORIGIN, and has asked ASKED for it. Each of its peers
    holds it up to 8.
    """

    def __init__(self) -> None:
        self.repair = Repair(failure_timeout_s=5.0)
        self.frontier = Frontier()
        self.frontier.replace([FrontierRow(*ORIGIN, 3, 1)])
        self.peers: dict[Origin, Peer] = {}
        for holder in (ASKED, OTHER, THIRD):
            peer = Peer(holder, f"node-{holder.node}", last_seen=0.0, last_progress=0.0, credit=1)
            peer.status = {ORIGIN: FrontierRow(*ORIGIN, 8, 1)}
            self.peers[holder] = peer
        assert self.asks(ASKED, 0.0)

    def asks(self, holder: Origin, now: float) -> bool:
        """A STATUS of that one has come: it is asked."""
        need = self.repair.missing(
            ORIGIN, 8, self.peers[holder], frontier=self.frontier, peers=self.peers, now=now
        )
        return need is not None

    def has_trimmed(self, holder: Origin) -> bool:
        return self.repair.has_trimmed(ORIGIN, holder, 3)


def test_a_gap_counts_for_who_was_asked_and_said_it_alone() -> None:
    search = Search()
    search.repair.note_trimmed(ORIGIN, ASKED, 6)
    assert [search.has_trimmed(holder) for holder in (ASKED, OTHER, THIRD)] == [True, False, False]
    assert not search.asks(ASKED, 0.1)
    assert search.asks(OTHER, 0.2)


@pytest.mark.parametrize("seconds", [0.2, 6.0])
def test_a_gap_of_a_holder_that_was_not_asked_counts_for_nobody(seconds: float) -> None:
    """Not for the one that was asked, whose answer is awaited still; nor for itself, once it is its turn."""
    search = Search()
    search.repair.note_trimmed(ORIGIN, OTHER, 6)
    assert not any(search.has_trimmed(holder) for holder in (ASKED, OTHER, THIRD))
    late = seconds > search.repair._failure_timeout_s
    assert [search.asks(ASKED, seconds), search.asks(OTHER, seconds)] == [False, late]


def test_a_gap_of_the_origin_counts_unasked_and_takes_the_question_from_nobody() -> None:
    search = Search()
    search.peers[ORIGIN] = search.peers.pop(THIRD)
    search.repair.note_trimmed(ORIGIN, ORIGIN, 6)
    assert [search.has_trimmed(holder) for holder in (ORIGIN, ASKED, OTHER)] == [True, False, False]
    assert not search.asks(OTHER, 0.1)  # ASKED is awaited


def test_what_is_to_come_unasked_is_waited_for_a_failure_timeout_and_anew_after_each_update() -> None:
    search = Search()
    waited = [search.repair.has_waited(ORIGIN, 3, now) for now in (0.0, 4.9, 5.0)]
    assert waited == [False, False, True]
    assert [search.repair.has_waited(ORIGIN, 4, now) for now in (6.0, 10.9, 11.0)] == [False, False, True]
    search.frontier.replace([FrontierRow(*ORIGIN, 8, 1)])
    search.repair.clean(search.frontier, search.peers)
    assert not search.repair.has_waited(ORIGIN, 4, 12.0)


def test_gaps_of_made_up_origins_keep_nobody_from_asking(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 1)
    cluster.link(1, 2)
    cluster.settle()
    liar = cluster.replica(1).me
    for number in range(ORIGINS_MAX):
        cluster.give(
            2,
            FrameReceived(
                liar,
                Trimmed(
                    node=Origin(2000 + number, 1).node,
                    incarnation=Origin(2000 + number, 1).incarnation,
                    trimmed_to=2**63,
                ),
            ),
        )
    cluster.give(0, own_update([1]))
    cluster.tick(2.0)
    assert cluster.replica(2).frontier.sequence(cluster.replica(0).me) == 1


def test_searches_are_bounded_however_many_origins_a_peer_invents(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    sent = 0
    view = cluster.replica(1).membership.view
    for turn in range(5):
        rows = [FrontierRow(2000 + turn * ORIGINS_MAX + number, 1, 5, 1) for number in range(ORIGINS_MAX)]
        said = status_of(cluster.replica(0).me, rows, view=view.number, cluster_id=view.cluster_id)
        sent += len(cluster.give(1, said))
    assert 0 < sent <= ORIGINS_MAX


def test_who_had_no_credit_to_ask_with_asks_when_it_is_given_back(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 1)
    cluster.link(1, 2)
    cluster.settle()
    cluster.give(0, own_update([1]))
    cluster.settle()
    asker, holder = cluster.replica(2), cluster.replica(1).me
    cluster.stuck = {(2, 1)}
    asker.peers[holder].credit = 0
    cluster.tick(4.0)  # each STATUS of the holder finds it without
    assert asker.frontier.sequence(cluster.replica(0).me) == 0
    effects = cluster.give(2, LinkDrained(holder))
    frames = [effect.frame[4] for effect in effects if isinstance(effect, Send)]
    assert FrameType.FETCH in frames
    cluster.stuck = set()
    cluster.settle()
    cluster.assert_converged()


def test_who_is_ahead_and_no_longer_holds_it_keeps_nobody_from_asking_a_slow_holder_again() -> None:
    origin, applied = Origin(9, 1), 3
    frontier = Frontier()
    frontier.replace([FrontierRow(*origin, applied, 1)])
    peers = {}
    for node, trimmed_to in ((1, 0), (2, 5)):
        peer = Peer(Origin(node, 1), f"node-{node}", last_seen=0.0, last_progress=0.0, credit=1)
        peer.status = {origin: FrontierRow(*origin, 8, 1, trimmed_to=trimmed_to)}
        peers[peer.origin] = peer
    slow, repair = peers[Origin(1, 1)], Repair(failure_timeout_s=5.0)
    asked = [
        repair.missing(origin, 8, slow, frontier=frontier, peers=peers, now=now) for now in (0.0, 6.0, 12.0)
    ]
    assert [need is not None for need in asked] == [True] * 3


def test_origins_that_a_peer_made_up_take_all_room_for_a_failure_timeout_at_most() -> None:
    frontier, repair = Frontier(), Repair(failure_timeout_s=5.0)
    liar = Peer(Origin(1, 1), "liar", last_seen=0.0, last_progress=0.0, credit=1)
    honest = Peer(Origin(2, 1), "honest", last_seen=0.0, last_progress=0.0, credit=1)
    made_up = [Origin(2000 + number, 1) for number in range(ORIGINS_MAX)]
    liar.status = {origin: FrontierRow(*origin, 5, 1) for origin in made_up}
    honest.status = {honest.origin: FrontierRow(*honest.origin, 8, 1)}
    peers = {peer.origin: peer for peer in (liar, honest)}

    def asks(origin: Origin, last: int, peer: Peer, now: float) -> bool:
        return repair.missing(origin, last, peer, frontier=frontier, peers=peers, now=now) is not None

    assert all(asks(origin, 5, liar, 0.0) for origin in made_up)
    assert [asks(honest.origin, 8, honest, now) for now in (1.0, 4.9, 5.0)] == [False, False, True]
    frontier.replace([FrontierRow(*honest.origin, 3, 1)])
    assert not asks(honest.origin, 8, honest, 9.0)  # it brings something, and is waited for
    for origin in made_up[:10]:
        asks(origin, 5, liar, 9.5)
    assert not asks(honest.origin, 8, honest, 9.6)
