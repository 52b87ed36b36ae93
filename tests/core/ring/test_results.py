"""A member that was cut off from a round which others completed is given its sums."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from p2psgd.core.effects import Send, SendFloats
from p2psgd.core.frontier import RING, Origin
from p2psgd.wire.reject import PeerError
from p2psgd.wire.ring_messages import ARRAY
from tests.core.ring.circle import Circle, cut_evenly, make_shares, ring_sum

WEIGHTS = 400


def cut_off(*, half: bool = False, kind: int = 0, credit_bytes: int = 1 << 20) -> Circle:
    """Three nodes; node 2 lacks the last piece of round 1, node 0 and 1 have it."""
    circle, cut = Circle(3, WEIGHTS, half=half, credit_bytes=credit_bytes), cut_evenly(WEIGHTS, 2)
    if kind == ARRAY:
        cut = [(0, WEIGHTS)]
    for number in range(3):
        [share] = make_shares(np.random.default_rng(number), WEIGHTS, 1)
        circle.plan(number, share, cut, kind=kind)
    circle.begin(range(3))
    done = False
    while not done:
        for link in ((2, 0), (0, 1), (1, 2)):
            for number in range(3):
                if circle.may_give(number):
                    circle.give(number)
            if circle.links[link] and not (link == (1, 2) and circle.nodes[1].completed):
                circle.deliver(*link)
        done = bool(circle.nodes[0].completed and circle.nodes[1].completed)
    assert not circle.nodes[2].completed
    for number in range(3):
        circle.stop(number)
    return circle


def test_a_generation_that_passes_over_a_result_does_not_fit_whoever_gave_to_it() -> None:
    circle = cut_off(kind=ARRAY)
    had, lacks = circle.nodes[0].rounds, circle.nodes[2].rounds
    assert (had.fits(1), had.fits(2), had.fits(3)) == (False, True, True)
    assert (lacks.fits(1), lacks.fits(2), lacks.fits(3)) == (True, False, True)
    circle.make_equal(range(3), Random(1))
    assert lacks.fits(2)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psgd.core.ring.chunks.SEGMENT_NUMBERS", 30)


def tell(circle: Circle, giver: int, taker: int) -> None:
    """The taker hears the giver's STATUS."""
    rows = {Origin(*row[:2]): row for row in circle.nodes[giver].replica.frontier.rows()}
    circle.nodes[taker].replica.peers[circle.nodes[giver].me].status = rows


def bytes_of(frame: Send | SendFloats) -> bytes:
    return frame.frame if isinstance(frame, Send) else frame.head + bytes(frame.numbers)


def give(circle: Circle, giver: int, taker: int) -> None:
    node = circle.nodes[giver]
    node.rounds.give_result(node.replica.peers[circle.nodes[taker].me], circle.now)
    circle.collect(giver)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("credit_bytes", [1, 1 << 20])
def test_it_ends_with_the_same_bytes(half: bool, credit_bytes: int) -> None:
    circle = cut_off(half=half, credit_bytes=credit_bytes)
    circle.make_equal(range(3), Random(1))
    late, other = circle.nodes[2], circle.nodes[0]
    assert late.completed == other.completed
    assert late.completed[0].own
    assert late.results[0][:WEIGHTS].tobytes() == other.results[0][:WEIGHTS].tobytes()
    assert late.weights.tobytes() == other.weights.tobytes()
    assert late.replica.frontier.rows() == other.replica.frontier.rows()
    assert not late.rounds.contributed
    assert late.replica.log.trimmed_to(RING) == late.replica.frontier.sequence(RING)


@pytest.mark.usefixtures("small_segments")
def test_an_array_is_given_as_well() -> None:
    circle = cut_off(kind=ARRAY)
    weights = circle.nodes[2].weights.tobytes()
    circle.make_equal(range(3), Random(1))
    assert circle.nodes[2].completed == circle.nodes[0].completed
    assert circle.nodes[2].results[0].tobytes() == circle.nodes[0].results[0].tobytes()
    assert circle.nodes[2].weights.tobytes() == weights
    assert not len(circle.nodes[2].replica.frontier)


@pytest.mark.usefixtures("small_segments")
def test_who_has_taken_it_can_give_it_on() -> None:
    circle, twin = cut_off(), cut_off()
    circle.make_equal(range(3), Random(1))
    give(circle, 2, 0)
    given = [frame for frame in circle.links[2, 0] if isinstance(frame, Send | SendFloats)]
    give(twin, 0, 2)
    expected = [frame for frame in twin.links[0, 2] if isinstance(frame, Send | SendFloats)]
    assert list(map(bytes_of, given)) == list(map(bytes_of, expected))
    done = circle.nodes[0].completed.copy()
    circle.run(Random(1))  # node 0 has it: all of it is passed over
    assert circle.nodes[0].completed == done


@pytest.mark.usefixtures("small_segments")
def test_it_is_given_once_and_again_when_nothing_has_moved() -> None:
    circle = cut_off()
    give(circle, 0, 2)
    first = len(circle.links[0, 2])
    give(circle, 0, 2)
    assert len(circle.links[0, 2]) == first
    circle.links[0, 2].clear()  # it never came
    circle.now += circle.nodes[0].replica.timing.failure_timeout_s
    circle.nodes[0].replica.out.refill(circle.nodes[0].replica.peers[circle.nodes[2].me])
    tell(circle, 0, 2)
    give(circle, 0, 2)
    circle.run(Random(1))
    assert circle.nodes[2].completed


@pytest.mark.usefixtures("small_segments")
def test_two_that_give_at_once_do_no_harm() -> None:
    for seed in range(10):
        circle = cut_off()
        for giver in (0, 1):
            tell(circle, giver, 2)
            give(circle, giver, 2)
        circle.run(Random(seed))
        assert circle.nodes[2].completed == circle.nodes[0].completed


@pytest.mark.usefixtures("small_segments")
def test_numbers_that_do_not_make_the_givers_weights_are_refused() -> None:
    circle = cut_off()
    tell(circle, 0, 2)
    circle.nodes[0].memory.sums[1][WEIGHTS - 3] += 1
    give(circle, 0, 2)
    weights = circle.nodes[2].weights.tobytes()
    with pytest.raises(PeerError, match="the result of round 1 that node-0 gave does not make its weights"):
        circle.run(Random(1))
    circle.collect(2)
    assert circle.nodes[2].weights.tobytes() == weights
    assert not circle.nodes[2].completed
    assert circle.nodes[2].alarms == ["the result of round 1 that node-0 gave does not make its weights"]
    circle.links[0, 2].clear()
    tell(circle, 1, 2)
    give(circle, 1, 2)
    circle.run(Random(1))
    assert circle.nodes[2].completed


def test_a_result_of_which_the_status_tells_nothing_is_passed_over() -> None:
    circle = cut_off()
    give(circle, 0, 2)
    circle.run(Random(1))
    assert not circle.nodes[2].completed


@pytest.mark.usefixtures("small_segments")
def test_pieces_that_are_not_the_next_are_refused() -> None:
    circle = cut_off()
    tell(circle, 0, 2)
    give(circle, 0, 2)
    del circle.links[0, 2][1]
    with pytest.raises(PeerError, match="numbers 30 to 60 of bucket 0 of a result came where 0 of bucket 0"):
        circle.run(Random(1))


@pytest.mark.usefixtures("small_segments")
def test_what_has_no_beginning_is_passed_over() -> None:
    circle = cut_off()
    tell(circle, 0, 2)
    give(circle, 0, 2)
    while len(circle.links[0, 2]) > 5:
        circle.links[0, 2].popleft()
    circle.run(Random(1))
    assert not circle.nodes[2].completed


@pytest.mark.usefixtures("small_segments")
def test_a_bucket_that_begins_before_the_one_before_is_whole_is_refused() -> None:
    circle = cut_off()
    tell(circle, 0, 2)
    give(circle, 0, 2)
    second = [frame for frame in circle.links[0, 2] if isinstance(frame, Send)][1]
    circle.links[0, 2].insert(2, second)
    with pytest.raises(PeerError, match="bucket 1 of a result came after 1 others, the last with 30 numbers"):
        circle.run(Random(1))


@pytest.mark.usefixtures("small_segments")
def test_a_snapshot_that_came_first_ends_it_and_the_share_is_in_it() -> None:
    circle = cut_off()
    late, other = circle.nodes[2], circle.nodes[0]
    tell(circle, 0, 2)
    give(circle, 0, 2)
    circle.deliver(0, 2)
    circle.deliver(0, 2)
    coordinates = other.replica.lattice.coordinates.copy()
    rows = other.replica.frontier.rows()
    before = late.rounds.contributed
    late.replica.state.replace(coordinates, rows, other.replica.lattice.digest)
    assert late.rounds.done == 1
    assert (before, late.rounds.contributed) == (True, False)
    circle.run(Random(1))
    assert not late.alarms
    assert not late.completed
    assert late.weights.tobytes() == other.weights.tobytes()


def test_a_snapshot_that_came_first_refuses_an_array_whose_sums_are_gone() -> None:
    circle = cut_off(kind=ARRAY)
    late = circle.nodes[2]
    late.replica.frontier.jump(1 << 32 | 1, 0, 1)
    assert late.rounds.done == 1
    circle.collect(2)
    assert late.refusals == ["others summed array 'w.0' (400,) in a round that this node missed"]


def test_weights_that_have_changed_in_memory_complete_no_round() -> None:
    circle = Circle(2, WEIGHTS)
    shares = [np.full(WEIGHTS, number + 1, np.float32) for number in range(2)]
    for number in range(2):
        circle.plan(number, shares[number], [(0, WEIGHTS)])
    circle.nodes[1].replica.lattice.coordinates[7] ^= 1 << 9
    circle.begin(range(2))
    circle.run(Random(1))
    hurt = circle.nodes[1]
    assert circle.nodes[0].completed
    assert not hurt.completed
    words = "the weights in memory have changed since the last round, by bad memory or a bug"
    assert hurt.rounds.request_stop == words
    assert hurt.alarms == [f"{words}: the round is not completed, and the weights are looked at anew"]
    assert hurt.replica.scanner.scrub_due == circle.now
    assert hurt.rounds.contributed  # its share is still there
    assert ring_sum(list(shares), [(0, WEIGHTS)])[0] == 3
    circle.stop(0)
    tell(circle, 0, 1)
    give(circle, 0, 1)
    circle.run(Random(1))
    assert not hurt.completed
    assert len(hurt.alarms) == 2


def test_a_result_is_no_bucket_of_a_generation() -> None:
    circle = cut_off()
    give(circle, 0, 2)
    circle.begin(range(3), view=2)
    while circle.links[0, 2]:
        circle.deliver(0, 2)
    assert not circle.nodes[2].completed
