"""What a replica does with what happens to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from p2psgd.core.effects import Drop, Record
from p2psgd.core.events import (
    GapReceived,
    LinkOpened,
    NodeStopping,
    StatusReceived,
    TimePassed,
    UpdateReceived,
)
from p2psgd.core.frontier import Origin
from p2psgd.core.peer import CREDIT_BYTES
from p2psgd.core.replica import OWN_LAG_MAX, Replica
from p2psgd.wire import codec
from p2psgd.wire.messages import ORIGINS_MAX, FrontierRow
from p2psgd.wire.update import UpdateHeader, pack_update, parse_update
from tests.core.cluster import WEIGHTS, Cluster, initial_coordinates, make_words, own_update

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


def test_a_recorded_replica_orders_every_update_applied_to_be_recorded_once(clusters: Clusters) -> None:
    cluster = clusters(1)
    cluster.give(0, own_update([1, 7]))
    frame = cluster.replica(0).log.frame(cluster.replica(0).me, 1)
    assert frame is not None
    me, peer = Origin(9, 1), cluster.replica(0).me
    recorded = Replica(cluster.spec, me=me, coordinates=initial_coordinates(), recorded=True)
    recorded.handle(LinkOpened(peer, "node-0"), 0.0)
    own = recorded.handle(own_update([2, 3]), 0.0)
    theirs = [recorded.handle(UpdateReceived(peer, frame[5:]), 0.0) for _ in range(2)]
    records = [[effect for effect in effects if isinstance(effect, Record)] for effects in (own, *theirs)]
    assert records == [[Record(recorded.log.frame(me, 1) or b"")], [Record(frame)], []]


def test_updates_that_cross_leave_equal_bits_in_any_order(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    for number in range(3):
        for turn in range(5):
            cluster.give(
                number, own_update([turn, 10 + number, 100], step=1 + number + turn, negative=turn % 2 == 0)
            )
    cluster.settle()
    cluster.assert_converged()
    assert cluster.replica(0).updates_applied == 10


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
    assert cluster.replica(1).updates_applied == 3
    assert cluster.replica(1).duplicates == 0


def test_a_duplicate_changes_nothing_and_is_counted(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1, 2]))
    frame = cluster.queues[0, 1][0]
    cluster.settle()
    digest = cluster.replica(1).lattice.digest
    assert cluster.give(1, UpdateReceived(cluster.replica(0).me, frame[5:])) == []
    assert cluster.replica(1).duplicates == 1
    assert cluster.replica(1).lattice.digest == digest


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
    cluster.pass_time(8.0)
    cluster.assert_converged()


def test_the_last_words_of_a_dead_node_spread_by_whoever_heard_them(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1]))
    assert cluster.deliver(0, 1)  # node 2 never gets it from its origin
    cluster.kill(0)
    cluster.pass_time(3.0)
    cluster.assert_converged()
    assert cluster.replica(2).updates_applied == 1


def test_nodes_that_cannot_reach_each_other_are_bridged(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 1)
    cluster.link(1, 2)
    cluster.settle()
    for index in range(4):
        cluster.give(0, own_update([index]))
        cluster.give(2, own_update([index]))
        cluster.pass_time(2.0)
    cluster.assert_converged()


def test_a_silent_origin_is_repaired_by_another_holder(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 2)}
    cluster.give(0, own_update([5]))
    cluster.settle()
    cluster.pass_time(9.0)  # past patience, before the silent link is closed
    assert cluster.replica(2).frontier.sequence(cluster.replica(0).me) == 1


def test_a_node_that_stops_acknowledges_all_it_has_first(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([5]))
    cluster.settle()
    assert cluster.replica(0).acknowledged_max == 0  # not yet due
    cluster.give(1, NodeStopping())
    cluster.settle()
    assert cluster.replica(0).acknowledged_max == 1


def test_a_link_on_which_nothing_comes_is_dropped(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    cluster.pass_time(21.0)
    number, drop = cluster.drops[0]
    assert (number, drop.reason) == (1, "silent")


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
    cluster.pass_time(4.0)
    cluster.assert_converged()
    assert cluster.replica(2).updates_applied == 20  # its own old ones, told by others, included


def test_past_the_logs_budget_a_laggard_is_told_and_stops(clusters: Clusters) -> None:
    cluster = clusters(2, log_budget_bytes=1000)
    for index in range(50):
        cluster.give(0, own_update([index]))
    assert cluster.replica(0).log.bytes_held <= 1000
    cluster.link_all()
    cluster.pass_time(8.0)
    number, words = cluster.halts[0]
    assert number == 1
    assert "in nobody's log any more" in words
    assert cluster.replica(1).updates_applied == 0


def test_a_late_node_is_told_by_another_holder_what_the_origin_has_dropped(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 2)
    cluster.settle()
    cluster.replica(0).log.budget_bytes = 1000
    for index in range(100):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.link(0, 1)  # node 1 hears GAP from the origin before it knows of node 2
    cluster.settle()
    cluster.pass_time(2.0)
    cluster.link(1, 2)
    cluster.pass_time(8.0)
    cluster.assert_converged()
    for index in range(20):
        cluster.give(0, own_update([200 + index]))
    cluster.pass_time(2.0)
    cluster.assert_converged()
    assert not cluster.halts


def test_a_gap_that_comes_before_any_status_tells_what_is_missing_is_remembered(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1), (2, 1)}
    cluster.replica(0).log.budget_bytes = 1000
    for index in range(20):
        cluster.give(0, own_update([index]))
    cluster.settle()
    origin = cluster.replica(0).me
    cluster.queues[0, 1].clear()
    cluster.give(1, GapReceived(origin, origin, cluster.replica(0).log.floor(origin)))
    cluster.give(1, TimePassed())  # no STATUS has said yet that anybody is ahead
    cluster.stuck = set()
    cluster.pass_time(3.0)
    cluster.assert_converged()


def test_a_log_that_loses_more_than_a_laggard_was_told_tells_it_again(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 2)
    cluster.settle()
    cluster.replica(0).log.budget_bytes = 1000
    for index in range(100):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.link(1, 2)
    cluster.link(0, 1)
    while cluster.deliver(1, 0) or cluster.deliver(0, 1):
        pass  # node 1 hears GAP up to 97
    for index in range(100):
        cluster.give(0, own_update([index]))
        while cluster.deliver(2, 1) or cluster.deliver(1, 2):
            pass  # and is brought past it by node 2, which is behind itself
    cluster.pass_time(4.0)
    cluster.assert_converged()
    assert not cluster.halts


def test_a_linked_origin_is_hoped_for_until_it_says_gap(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    cluster.replica(2).log.budget_bytes = 1000
    for index in range(100):
        cluster.give(0, own_update([index]))
    cluster.pass_time(14.0)  # node 2 has the latest and says GAP for the others; the origin is silent
    assert not cluster.halts
    cluster.stuck = set()
    cluster.pass_time(2.0)
    cluster.assert_converged()


def test_hope_is_given_up_only_after_a_patience_without_any_other_holder(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link(0, 2)
    cluster.settle()
    cluster.replica(0).log.budget_bytes = 1000
    for index in range(100):
        cluster.give(0, own_update([index]))
    cluster.settle()
    cluster.stuck = {(2, 1)}  # node 2 is linked with node 1, but brings nothing
    cluster.link(0, 1)
    cluster.link(1, 2)
    cluster.pass_time(12.0)
    assert not cluster.halts
    cluster.cut(1, 2)
    cluster.pass_time(4.0)
    assert not cluster.halts
    cluster.stuck = set()
    cluster.link(1, 2)
    cluster.pass_time(3.0)
    cluster.assert_converged()
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
    monkeypatch.setattr(
        cluster.replica(1), "_serve", lambda peer, event: None
    )  # node 1 has them but sends none
    cluster.link(1, 3)
    cluster.pass_time(1.0)
    cluster.link(2, 3)
    cluster.pass_time(20.0)
    assert cluster.replica(3).updates_applied == 5


def test_a_gap_that_nobody_asked_about_is_not_believed(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    liar = cluster.replica(0).me
    unknown = Origin(99, 1)
    cluster.give(1, GapReceived(liar, unknown, 5))
    rows = [FrontierRow(*unknown, 5, 1)]
    for _ in range(20):
        cluster.now += 1.0
        cluster.give(1, StatusReceived(liar, rows, 0))
        cluster.give(1, TimePassed())
    assert not cluster.halts


def test_a_run_has_a_last_origin_and_a_place_is_kept_for_the_own_one(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    header, payload = sample_update(cluster)
    for number in range(ORIGINS_MAX):
        body = pack_update(dataclasses.replace(header, node=1000 + number), payload)
        cluster.give(1, UpdateReceived(cluster.replica(0).me, body))
    assert [drop.reason for _, drop in cluster.drops] == ["origins"]
    cluster.give(1, own_update([1]))
    assert len(cluster.replica(1).frontier) == ORIGINS_MAX


def test_searches_are_bounded_however_many_origins_a_peer_invents(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    sent = 0
    for turn in range(5):
        rows = [FrontierRow(2000 + turn * ORIGINS_MAX + number, 1, 5, 1) for number in range(ORIGINS_MAX)]
        sent += len(cluster.give(1, StatusReceived(cluster.replica(0).me, rows, 0)))
    assert sent <= ORIGINS_MAX


def test_a_peer_that_has_more_of_our_updates_than_we_made_is_dropped(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    rows = [FrontierRow(*cluster.replica(1).me, 3, 1)]
    cluster.give(1, StatusReceived(cluster.replica(0).me, rows, 0))
    assert [drop.reason for _, drop in cluster.drops] == ["identity"]


def test_what_is_under_way_on_a_link_is_bounded_by_its_credit(clusters: Clusters) -> None:
    cluster = clusters(2, log_budget_bytes=1 << 26)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    dense = list(range(1250))
    frame_bytes = 0
    while cluster.replica(0).log.bytes_held < 5 * CREDIT_BYTES:
        cluster.give(0, own_update(dense))
        frame_bytes = max(frame_bytes, cluster.replica(0).update_bytes_sent // cluster.replica(0).sequence)
    waiting = sum(map(len, cluster.queues[0, 1]))
    assert abs(waiting - CREDIT_BYTES) <= frame_bytes  # the first STATUS has taken some of the credit
    cluster.stuck = set()
    cluster.settle()
    cluster.assert_converged()


def test_what_is_not_the_log_waits_for_credit_too(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    next(iter(cluster.replica(0).peers.values())).credit = 0
    for _ in range(20):
        cluster.now += 1.0
        cluster.give(0, TimePassed())
    assert not cluster.queues[0, 1]  # nineteen STATUS were due


def test_a_node_is_congested_only_when_its_fastest_lively_peer_is_far_behind(clusters: Clusters) -> None:
    cluster = clusters(3)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    for index in range(OWN_LAG_MAX + 200):
        cluster.give(0, own_update([index], mini_batch=1 + index))
    cluster.settle()
    assert not cluster.replica(0).congested(cluster.now)  # node 2 keeps up
    cluster.stuck = {(0, 1), (0, 2)}
    for index in range(OWN_LAG_MAX + 200):
        cluster.give(0, own_update([index], mini_batch=OWN_LAG_MAX + 201 + index))
    assert cluster.replica(0).congested(cluster.now)
    assert not cluster.replica(0).congested(cluster.now + 6.0)  # nobody acknowledges: nobody is waited for
    cluster.stuck = set()
    cluster.settle()
    assert not cluster.replica(0).congested(cluster.now)


def test_mini_batches_make_a_peer_lag_however_many_updates_each_of_them_makes(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.stuck = {(0, 1)}
    for mini_batch in range(1, OWN_LAG_MAX + 1):
        for index in range(3):
            cluster.give(0, own_update([index], mini_batch=mini_batch))
    assert not cluster.replica(0).congested(cluster.now)
    cluster.give(0, own_update([3], mini_batch=OWN_LAG_MAX + 1))
    assert cluster.replica(0).congested(cluster.now)
    cluster.stuck = set()
    cluster.settle()
    assert not cluster.replica(0).congested(cluster.now)


def sample_update(cluster: Cluster) -> tuple[UpdateHeader, bytes]:
    """A valid first update of node 0 that node 1 has not seen."""
    words = make_words([3, 9, 4000])
    digest = codec.digest_words(words, 5, cluster.spec.key)
    origin = cluster.replica(0).me
    header = UpdateHeader(*origin, sequence=1, digest=digest, mini_batch=1, step=5, count=3)
    return header, codec.encode(words, WEIGHTS)


def corrupt(header: UpdateHeader, payload: bytes, what: str) -> bytes:
    changes: dict[str, dict[str, int]] = {
        "digest": {"digest": header.digest ^ 1},
        "step": {"step": 0},
        "large step": {"step": codec.STEP_MAX + 1},
        "count over the cap": {"count": codec.indices_max(WEIGHTS) + 1},
        "count too large": {"count": 4},
        "count too small": {"count": 2},
        "sequence": {"sequence": 0},
        "own": {"node": 2, "incarnation": 1},
    }
    match what:
        case "checksum":
            body = bytearray(pack_update(header, payload))
            body[-1] ^= 1
            return bytes(body)
        case "no indices":
            return pack_update(dataclasses.replace(header, count=0), b"")
        case "length":
            return pack_update(header, payload)[:-1]
        case "header":
            return bytes(10)
        case "index":
            return pack_update(header, codec.encode(make_words([3, 9, WEIGHTS]), WEIGHTS + 1))
        case _:
            return pack_update(dataclasses.replace(header, **changes[what]), payload)


BAD = {
    "checksum": "checksum",
    "digest": "digest",
    "step": "step",
    "large step": "step",
    "no indices": "count",
    "count over the cap": "count",
    "count too large": "payload",
    "count too small": "payload",
    "sequence": "sequence",
    "length": "update length",
    "header": "update length",
    "index": "payload",
    "own": "identity",
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_update_drops_the_peer_by_its_reason_and_changes_nothing(clusters: Clusters, what: str) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    header, payload = sample_update(cluster)
    replica = cluster.replica(1)
    before = replica.lattice.coordinates.tobytes(), replica.frontier.rows(), len(replica.log)
    effects = cluster.give(1, UpdateReceived(cluster.replica(0).me, corrupt(header, payload, what)))
    drops = [effect for effect in effects if isinstance(effect, Drop)]
    assert [drop.reason for drop in drops] == [BAD[what]]
    assert (replica.lattice.coordinates.tobytes(), replica.frontier.rows(), len(replica.log)) == before


def test_the_same_update_unharmed_is_applied(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    header, payload = sample_update(cluster)
    cluster.give(1, UpdateReceived(cluster.replica(0).me, pack_update(header, payload)))
    assert cluster.replica(1).updates_applied == 1


def test_every_single_flipped_bit_of_an_update_is_noticed(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    body = pack_update(*sample_update(cluster))
    for bit in range(8 * len(body)):
        harmed = bytearray(body)
        harmed[bit // 8] ^= 1 << bit % 8
        effects = cluster.give(1, UpdateReceived(cluster.replica(0).me, harmed))
        assert any(isinstance(effect, Drop) for effect in effects), bit
    assert cluster.replica(1).updates_applied == 0


def test_a_weight_past_what_float32_holds_is_named(clusters: Clusters) -> None:
    cluster = clusters(1)
    for _ in range(9):
        cluster.give(0, own_update([4100], step=codec.STEP_MAX))
    assert len(cluster.alarms) == 1
    assert "output[100]" in cluster.alarms[0]
    for _ in range(8):
        cluster.give(0, own_update([4100], step=codec.STEP_MAX))
    assert "output[100]" in cluster.halts[0][1]
    assert "2^-20" in cluster.halts[0][1]


def test_two_sides_that_disagree_on_a_digest_part_with_an_alarm(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.link_all()
    cluster.settle()
    cluster.give(0, own_update([1]))
    cluster.settle()
    origin = cluster.replica(0).me
    sequence, digest = 1, cluster.replica(1).frontier.digest(origin)
    cluster.replica(1).frontier._rows[origin] = (sequence, digest ^ 1)
    cluster.replica(1).frontier._packed = None
    cluster.pass_time(1.5)
    assert {drop.reason for _, drop in cluster.drops} == {"digest"}
    assert cluster.alarms


def test_parse_and_pack_of_an_update_are_inverse(clusters: Clusters) -> None:
    header, payload = sample_update(clusters(1))
    parsed, view = parse_update(pack_update(header, payload), WEIGHTS)
    assert (parsed, bytes(view)) == (header, payload)
