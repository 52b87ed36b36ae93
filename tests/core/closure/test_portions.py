"""Dealing portions, keeping results, and the limits that follow: each by itself."""

from __future__ import annotations

import numpy as np

from p2psgd.core.closure.portions import Dealer, Standing, Task
from p2psgd.core.closure.results import Result, ResultLog
from p2psgd.core.closure.scales import corrected_limits, first_limits, next_limits
from p2psgd.core.closure.sums import Pull
from p2psgd.core.frontier import Origin
from p2psgd.wire.evaluation import set_of
from p2psgd.wire.fixed_point import NOTHING

A, B, C = (Origin(node, 1) for node in (1, 2, 3))
NONE = np.full(2, NOTHING, np.int16)


def make(portions: int = 6, *, deals_from: float = 0.0, backups: bool = True) -> Dealer:
    return Dealer(Task(1, 7, portions, 0, first_limits(2)), deals_from=deals_from, backups=backups)


def report(dealer: Dealer, member: Origin, added: list[int], held: dict[int, int], now: float = 1.0) -> None:
    dealer.report(member, Standing(set_of(added), held, NONE))
    dealer.deal(now)


def leases(dealer: Dealer, member: Origin) -> list[int]:
    return list(dealer.holders[member].leases)


def test_each_member_has_what_it_computes_and_what_comes_next() -> None:
    dealer = make()
    report(dealer, A, [], {})
    report(dealer, B, [], {})
    assert (leases(dealer, A), leases(dealer, B)) == ([0, 1], [2, 3])
    report(dealer, A, [], {0: 5})
    assert leases(dealer, A) == [1, 4]
    assert dealer.holders[A].granted == 0b1


def test_who_has_nothing_to_do_gets_what_another_has_had_for_longest() -> None:
    dealer = make(3)
    report(dealer, A, [], {}, now=1.0)
    report(dealer, B, [], {}, now=2.0)
    assert (leases(dealer, A), leases(dealer, B)) == ([0, 1], [2])
    report(dealer, C, [], {}, now=3.0)
    assert leases(dealer, C) == [0]
    assert dealer.dealt.again == 1
    without = make(1, backups=False)
    report(without, A, [], {})
    report(without, B, [], {})
    assert leases(without, B) == []


def test_the_first_answer_counts() -> None:
    dealer = make(1)
    report(dealer, A, [], {})
    report(dealer, B, [], {})
    report(dealer, B, [], {0: 5})
    assert leases(dealer, A) == []
    report(dealer, A, [], {0: 5})
    assert (dealer.holders[A].granted, dealer.holders[B].granted) == (0, 1)
    assert dealer.dealt.dropped == 1
    assert not dealer.is_complete()
    report(dealer, B, [0], {})
    assert dealer.is_complete()
    assert dealer.differing is None


def test_two_checksums_of_a_portion_are_named() -> None:
    dealer = make(1)
    report(dealer, A, [], {0: 5})
    report(dealer, B, [], {0: 6})
    assert dealer.differing == (0, A, B)


def test_what_a_lost_member_had_is_dealt_anew() -> None:
    dealer = make(3)
    report(dealer, A, [0], {1: 5})
    report(dealer, B, [], {})
    dealer.lose(A)
    report(dealer, B, [], {})
    assert set(leases(dealer, B)) <= {0, 1, 2}
    report(dealer, A, [0], {})  # it was away for a moment
    assert dealer.holders[A].added == 0b1


def test_a_sum_that_has_a_portion_of_another_counts_for_nothing() -> None:
    dealer = make(3)
    report(dealer, A, [0], {})
    report(dealer, B, [0, 1], {})
    assert dealer.holders[B].taken == 0
    assert dealer.holders[A].taken == 0b1


def test_what_another_leader_has_begun_waits_for_reports() -> None:
    dealer = make(deals_from=2.0)
    report(dealer, A, [3], {}, now=1.0)
    assert leases(dealer, A) == []
    dealer.deal(2.0)
    assert leases(dealer, A) == [0, 1]


def test_a_portion_that_one_fails_at_goes_to_another() -> None:
    dealer = make(1)
    report(dealer, A, [], {})
    dealer.report(A, Standing(0, {}, NONE, failed=0, words="no such file"))
    dealer.deal(1.0)
    assert leases(dealer, A) == []
    assert dealer.hopeless([A]) == (0, {A: "no such file"})
    report(dealer, B, [], {})
    assert leases(dealer, B) == [0]
    assert dealer.hopeless([A, B]) is None


def test_members_compute_ahead_only_while_there_is_plenty() -> None:
    dealer = make(8)
    report(dealer, A, [], {})
    assert dealer.plenty
    report(dealer, B, [], {})
    assert not dealer.plenty


def result(number: int) -> Result:
    return Result(
        Task(number, 7, 6, 0, first_limits(2)), np.array([3, NOTHING], np.int16), np.zeros(10, np.int64)
    )


def test_the_oldest_results_go_when_the_log_is_full_and_one_stays() -> None:
    log = ResultLog(bytes_max=200)
    assert (log.first, log.last) == (1, 0)
    for number in range(1, 5):
        log.append(result(number))
    assert (log.first, log.last) == (3, 4)
    assert log.find(2) is None
    small = ResultLog(bytes_max=1)
    small.append(result(1))
    small.append(result(2))
    assert (small.first, small.last) == (2, 2)
    limits = small.limits_after(2, 2)
    assert limits is not None
    assert limits.tolist() == [13, 8]
    assert small.limits_after(1, 2) is None


def test_limits_are_corrected_only_where_numbers_do_not_fit_or_are_far_below() -> None:
    limits = np.array([13, 8], np.int16)
    assert corrected_limits(limits, np.array([13, -12], np.int16)) is None
    for exponents, corrected in (([14, 8], [14, 8]), ([-8, NOTHING], [-8, 8])):
        found = corrected_limits(limits, np.array(exponents, np.int16))
        assert found is not None
        assert found.tolist() == corrected
    assert next_limits(limits, np.array([1020, 0], np.int16)).tolist() == [1024, 10]


def test_numbers_are_fetched_in_order_and_once() -> None:
    pull = Pull(10, 30)
    assert list(pull.wants()) == [(10, 20)]
    assert not pull.accept(12, 2)
    assert pull.accept(10, 20)
    assert not pull.accept(10, 20)
    assert pull.done
