"""Evaluations of several members: one result to the bit, whoever is slow, dies or comes late."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

import pytest

from p2psgd.core.closure import sums
from p2psgd.core.closure.closure import OVERDRAFT_BYTES
from p2psgd.core.closure.leader import Leader
from p2psgd.core.events import FrameReceived, LinkDrained, TrainerChanged
from p2psgd.core.frontier import Origin
from p2psgd.wire.evaluation import pack_exponents, pack_portions, pack_table
from p2psgd.wire.frames import FrameType
from p2psgd.wire.messages import EvaluationFetch, EvaluationLease, EvaluationReport, EvaluationTable
from tests.core.closure.cluster import ClosureCluster

Make = Callable[..., ClosureCluster]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ClosureCluster] = []

    def build(size: int, *, portions: int = 12, two_nodes: str = "stall") -> ClosureCluster:
        cluster = ClosureCluster(size, portions=portions, two_nodes=two_nodes)
        made.append(cluster)
        if size > 1:
            cluster.found()
        else:
            cluster.tick(30.0)
        return cluster

    yield build
    for cluster in made:
        cluster.assert_equal_at_equal_frontiers()
        assert cluster.drops == []


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces to a shard, and several windows."""
    monkeypatch.setattr(sums, "PIECE_NUMBERS", 300)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_members_get_the_sums_of_one_process(make: Make, size: int) -> None:
    """Which Evaluator compares."""
    cluster = make(size)
    cluster.attach()
    cluster.evaluate(4, Random(size))
    assert all(trainer.errors == [] for trainer in cluster.trainers.values())


def test_each_member_computes_some_portions_and_fast_ones_more(make: Make) -> None:
    cluster = make(3, portions=40)
    cluster.speeds = [1.0, 1.0, 0.1]
    cluster.attach()
    cluster.evaluate(3, Random(1))
    fast, also, slow = (cluster.trainers[number].computed for number in range(3))
    assert min(fast, also) > 2 * slow > 0


def test_a_trainer_that_stands_still_holds_up_nobody(make: Make) -> None:
    cluster = make(3)
    cluster.attach()
    cluster.evaluate(1, Random(1))
    cluster.speeds[1] = 0.0
    cluster.evaluate(6, Random(1), 0, 2)
    cluster.speeds[1] = 1.0
    cluster.evaluate(8, Random(1))


def test_members_that_are_killed_at_any_instant_hold_up_nobody(make: Make) -> None:
    for seed in range(12):
        cluster, chance = make(4), Random(seed)
        cluster.attach()
        cluster.evaluate(1, chance)
        for _ in range(chance.randint(0, 60)):
            cluster.turn(chance)
        victim = chance.randrange(4)
        cluster.kill(victim)
        cluster.evaluate(4, chance)


class Killed(Exception):
    """The message has come at which a member dies."""


class CountedCluster(ClosureCluster):
    """It counts the messages of an evaluation, and stops at one of them: number `last`, if there is one."""

    messages, last = 0, 0

    def deliver(self, source: int, target: int) -> bool:
        if self.queues[source, target]:
            self.messages += 1
            if self.messages == self.last:
                raise Killed
        return super().deliver(source, target)

    def evaluate_until(self, last: int, chance: Random) -> bool:
        """Make an evaluation; return whether it came to that message."""
        self.messages, self.last = 0, last
        try:
            self.evaluate(2, chance)
        except Killed:
            return True
        finally:
            self.last = 0
        return False


@pytest.mark.long
def test_a_member_dies_at_any_message_of_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is lost with it. By turns it is the one that deals portions, and another."""
    monkeypatch.setattr(sums, "PIECE_NUMBERS", 2000)
    for last in itertools.count(1):
        cluster, chance = CountedCluster(3, portions=5), Random(3)
        cluster.found()
        cluster.attach()
        cluster.evaluate(1, chance)
        if not cluster.evaluate_until(last, chance):
            break
        cluster.kill(last % 3)
        cluster.evaluate(3, chance)
        assert all(trainer.errors == [] for trainer in cluster.trainers.values())
        cluster.assert_equal_at_equal_frontiers()
    assert last > 40


def test_a_trainer_that_was_started_again_makes_up_for_it_from_the_log(make: Make) -> None:
    cluster, chance = make(3), Random(1)
    cluster.attach()
    cluster.evaluate(3, chance)
    for _ in range(7):
        cluster.turn(chance)
    cluster.detach(1)
    cluster.evaluate(5, chance)
    computed = [cluster.trainers[number].computed for number in (0, 2)]
    cluster.attach(1)
    cluster.evaluate(5, chance, 1)
    assert cluster.trainers[1].computed == 0
    assert [cluster.trainers[number].computed for number in (0, 2)] >= computed
    cluster.evaluate(7, chance)


def test_a_member_that_joins_late_does(make: Make) -> None:
    cluster, chance = make(3), Random(1)
    cluster.attach(0, 1)
    cluster.evaluate(4, chance)
    cluster.attach(2)
    cluster.evaluate(20, chance)
    assert cluster.trainers[2].computed > 0


def test_links_that_are_lost_and_come_again_change_nothing(make: Make) -> None:
    for seed in range(8):
        cluster, chance = make(3), Random(seed)
        cluster.attach()
        for _ in range(6):
            for _ in range(chance.randint(0, 30)):
                cluster.turn(chance)
            a, b = chance.sample(range(3), 2)
            cluster.cut(a, b)
            for _ in range(chance.randint(0, 10)):
                cluster.turn(chance)
            cluster.link(a, b)
        cluster.evaluate(4, chance)


def test_another_point_is_refused_with_both_digests(make: Make) -> None:
    cluster, chance = make(2), Random(1)
    cluster.attach()
    cluster.settle()
    cluster.answers.pop(1)
    cluster.trainers[1].digest = 77
    cluster.give(1, TrainerChanged(active=False))
    cluster.give(1, TrainerChanged(active=True))
    cluster.give(1, cluster.trainers[1].begin())
    cluster.settle()
    error = cluster.answers[1].error
    assert "node-1" in error
    assert "000000000000004d" in error
    assert "0000000000000001" in error
    del cluster.trainers[1], cluster.answers[1]
    cluster.evaluate(2, chance, 0)


def test_a_portion_that_one_cannot_compute_another_does(make: Make) -> None:
    cluster, chance = make(2), Random(1)
    cluster.attach()
    cluster.trainers[0].fails = {3: "OSError: no such file"}
    cluster.evaluate(3, chance)
    assert cluster.trainers[0].errors == []


def test_a_portion_that_nobody_can_compute_ends_the_evaluation_everywhere(make: Make) -> None:
    cluster, chance = make(2), Random(1)
    cluster.attach()
    for trainer in cluster.trainers.values():
        trainer.fails = {3: "OSError: no such file"}
    for _ in range(600):
        cluster.turn(chance)
        if all(trainer.errors for trainer in cluster.trainers.values()):
            break
    for trainer in cluster.trainers.values():
        assert "portion 3 of 12 of evaluation 1 cannot be computed" in trainer.errors[0]
        assert "OSError: no such file" in trainer.errors[0]
        trainer.fails = {}
    cluster.evaluate(2, chance)


def test_a_failure_is_not_reported_again_with_each_further_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without its data has one for each portion. Again only for a lease that was under way."""
    reported: list[tuple[Origin, int]] = []
    hear = Leader.hear_report

    def note(self: Leader, member: Origin, report: EvaluationReport, now: float) -> None:
        if report.failed and member != self._me:
            reported.append((self._me, report.failed))
        hear(self, member, report, now)

    monkeypatch.setattr(Leader, "hear_report", note)
    cluster, chance = make(3, portions=40), Random(1)
    last = max(range(3), key=lambda number: cluster.closure(number).me.node)
    cluster.attach()
    cluster.trainers[last].fails = dict.fromkeys(range(40), "OSError: no such file")
    cluster.evaluate(1, chance)
    failures = len(set(reported))
    assert failures > 10
    assert len(reported) <= 4 * failures  # of some 20; all with each of them would be 10 times as many


def adding(cluster: ClosureCluster, number: int) -> int:
    """Go on until this trainer has added a portion to others, has not yet said so."""
    for _ in range(400):
        for other in list(cluster.answers):
            seat = cluster.closure(number).seat
            if number in cluster.answers and seat is not None and seat.added and seat.adding:
                return seat.adding
            cluster.step(other)
        cluster.settle()
    raise AssertionError("no such moment")


@pytest.mark.parametrize("lease_first", [True, False])
def test_no_table_is_believed_while_the_trainer_may_have_added_more(make: Make, lease_first: bool) -> None:
    """Another leader gave the portion to another member: it would be in two sums."""
    cluster = make(3)
    cluster.attach()
    cluster.evaluate(1, Random(1))
    portion = adding(cluster, 1)
    member, leader = cluster.closure(1), cluster.replica(0).me
    seat = member.seat
    assert seat is not None
    assert member.reported_to == leader
    task, added = seat.task, seat.added
    rows = [(each.node, each.incarnation) for each in (leader, cluster.replica(1).me)]
    holders, assignment = pack_table(rows, (task.all & ~added, added), task.portions)
    table = EvaluationTable(
        evaluation=task.evaluation,
        attempt=task.attempt,
        number=1,
        leader=leader.node,
        holders=holders,
        assignment=assignment,
        exponents=pack_exponents(task.limits),
    )
    lease = EvaluationLease(
        evaluation=task.evaluation,
        attempt=task.attempt,
        limits=pack_exponents(task.limits),
        granted=pack_portions(added, task.portions),
        decided=pack_portions(added | portion, task.portions),
        leases=b"",
        ahead=False,
        error="",
    )
    for message in (lease, table) if lease_first else (table,):
        cluster.give(1, FrameReceived(leader, message))
        assert member.sums is None
    cluster.evaluate(4, Random(1))


def test_a_trainer_that_does_not_say_what_it_has_added_begins_anew(make: Make) -> None:
    """One whose last call was broken off, or another program, which would let the daemon hold too much."""
    cluster = make(1)
    cluster.attach()
    for turn in range(80):
        if 0 in cluster.answers:
            cluster.trainers[0]._added = () if turn < 40 else cluster.trainers[0]._added
            cluster.step(0)
        else:
            cluster.tick(0.5)
    cluster.evaluate(2, Random(1))
    assert cluster.closure(0).counts.total["sum begun anew"] > 0


@pytest.mark.parametrize("number", [1, 2**64 - 1])
def test_a_table_of_any_number_stops_no_leader(make: Make, number: int) -> None:
    cluster = make(2, two_nodes="lower-id")
    cluster.attach()
    seat, liar = cluster.closure(0).seat, cluster.replica(1).me
    assert seat is not None
    holders, assignment = pack_table([(liar.node, liar.incarnation)], (seat.task.all,), seat.task.portions)
    table = EvaluationTable(
        evaluation=1,
        attempt=0,
        number=number,
        leader=liar.node,
        holders=holders,
        assignment=assignment,
        exponents=pack_exponents(seat.task.limits),
    )
    cluster.give(0, FrameReceived(liar, table))
    cluster.evaluate(3, Random(1))


def test_a_table_that_is_lost_with_a_link_comes_again(make: Make) -> None:
    for seed in range(12):
        cluster, chance = make(2, two_nodes="lower-id"), Random(seed)
        cluster.attach()
        for _ in range(30):
            for _ in range(chance.randint(0, 12)):
                cluster.turn(chance)
            cluster.cut(0, 1)
            cluster.link(0, 1)
        done = max(trainer.evaluations for trainer in cluster.trainers.values())
        cluster.evaluate(done + 2, chance, turns=1500)


@pytest.mark.parametrize("knows", [True, False])
def test_a_leader_overtakes_the_tables_of_the_one_before(make: Make, knows: bool) -> None:
    """That one had made several, and members that are given nothing more keep the last of them."""
    cluster = make(4)
    cluster.attach()
    cluster.evaluate(1, Random(1))
    for number in (2, 3):  # they have nothing in their sums when the leader dies
        while (seat := cluster.closure(number).seat) is None or seat.task.evaluation < 2:
            cluster.step(number)
            cluster.settle()
    before = Leader._make_table
    with pytest.MonkeyPatch.context() as patch:

        def high(self: Leader, *given: object, **named: object) -> None:
            if self is cluster.closure(0).leader:
                self.highest = max(self.highest, 7)
            before(self, *given, **named)  # type: ignore[arg-type]

        patch.setattr(Leader, "_make_table", high)
        for _ in range(600):
            held = [cluster.closure(number).sums for number in (2, 3)]
            if all(each is not None and each.table.key[0] > 7 for each in held):
                break
            for number in (0, 1):
                if number in cluster.answers:
                    cluster.step(number)
            for direction in list(cluster.queues):
                cluster.deliver(*direction)
        else:
            raise AssertionError("no such moment")
        if not knows:
            cluster.closure(1).sums = None
        cluster.kill(0)
    cluster.speeds = [0.0, 1.0, 0.0, 0.0]
    cluster.evaluate(3, Random(1), 1)


def test_a_member_that_is_behind_all_logs_gets_an_error(make: Make) -> None:
    """It had asked before the others went on without it."""
    cluster = make(3)
    for number in range(3):
        cluster.closure(number).results.bytes_max = 1
    cluster.attach()
    cluster.evaluate(1, Random(1))
    while (seat := cluster.closure(1).seat) is None or seat.task.evaluation < 2:
        cluster.step(1)
        cluster.settle()
    cluster.speeds[1] = 0.0
    for other in (0, 2):
        cluster.cut(1, other)
    cluster.evaluate(5, Random(1), 0, 2)
    cluster.speeds[1] = 1.0
    for other in (0, 2):
        cluster.link(1, other)
    for _ in range(200):
        cluster.turn(Random(1))
        if cluster.trainers[1].errors:
            break
        cluster.tick(0.1)
    assert "is over, and no linked node holds it any more" in cluster.trainers[1].errors[0]


def test_a_member_that_asks_with_another_point_takes_its_sum_with_it(make: Make) -> None:
    cluster = make(3)
    cluster.attach()
    cluster.evaluate(1, Random(1))
    adding(cluster, 1)
    cluster.trainers[1].digest = 77
    cluster.step(1)
    cluster.evaluate(4, Random(1), 0, 2)
    assert "000000000000004d" in cluster.trainers[1].errors[0]


def test_a_peer_that_asks_without_an_end_is_given_what_its_link_takes(make: Make) -> None:
    cluster = make(2, two_nodes="lower-id")
    cluster.attach()
    cluster.evaluate(1, Random(1))
    cluster.settle()
    cluster.stuck.add((0, 1))
    asker, before = cluster.replica(1).me, len(cluster.queues[0, 1])
    for number in range(2000):
        request = EvaluationFetch(
            evaluation=1, attempt=0, kind=2, table=0, leader=0, offset=number, count=3000
        )
        cluster.give(0, FrameReceived(asker, request))
    frames = list(cluster.queues[0, 1])[before:]
    assert 2**19 <= sum(map(len, frames)) < 2**20 + 2**16
    cluster.stuck.clear()
    cluster.evaluate(3, Random(1))


def test_a_peer_whose_link_is_full_hears_of_the_newest_result_once_it_has_drained(make: Make) -> None:
    cluster, chance = make(3), Random(1)
    cluster.attach()
    cluster.evaluate(1, chance)
    cluster.settle()
    cluster.detach(2)
    cluster.settle()
    cluster.stuck.add((0, 2))
    closure, peer = cluster.closure(0), cluster.replica(0).cluster.peers[cluster.replica(2).me]
    peer.credit = 0
    before = len(cluster.queues[0, 2])
    cluster.evaluate(30, chance, 0, 1)
    assert closure.results.last == 30
    frames = list(cluster.queues[0, 2])[before:]
    assert FrameType.EVALUATION_RESULT not in {frame[4] for frame in frames}
    request = EvaluationFetch(evaluation=99, attempt=0, kind=2, table=0, leader=0, offset=0, count=1)
    for _ in range(200):  # what may be what all wait for is sent, up to a limit
        closure._send_to_peer(peer.origin, request)
    assert OVERDRAFT_BYTES <= -peer.credit < OVERDRAFT_BYTES + 1000
    cluster.stuck.clear()
    cluster.give(0, LinkDrained(peer.origin))
    cluster.settle()
    assert cluster.closure(2)._held_by[cluster.replica(0).me] == (1, closure.results.last)
    cluster.attach(2)
    cluster.evaluate(30, chance, 2)


def test_a_leader_without_a_trainer_deals_a_run_that_begins_anew(make: Make) -> None:
    """All that had results were started again, and so have none."""
    cluster = make(3)
    cluster.attach(1, 2)
    cluster.evaluate(3, Random(1))
    for number in (1, 2):
        cluster.kill(number)
    cluster.tick(1.0)
    for number in (1, 2):
        cluster.boot(number)
    cluster.link_all()
    cluster.tick(20.0)
    cluster.attach(1, 2)
    cluster.evaluate(2, Random(1))
