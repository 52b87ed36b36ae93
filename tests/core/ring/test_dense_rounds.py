"""Dense rounds: every node ends with the same bits, whatever comes when."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2psgd.wire.ring_messages import ARRAY
from tests.core.ring.circle import Circle, Cut, Numbers, cut_evenly, initial_weights, make_shares, ring_sum

ROUNDS = 3
SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def rings(draw: st.DrawFn) -> tuple[int, int, int, set[int], int]:
    """Nodes, weights, buckets, who is passive, credit."""
    nodes = draw(st.integers(2, 7))
    weights = draw(st.one_of(st.integers(1, 20), st.integers(1, 5000)))
    passive = draw(st.sets(st.integers(0, nodes - 1), max_size=nodes - 1))
    return nodes, weights, draw(st.integers(1, 6)), passive, draw(st.sampled_from([1, 500, 5000, 1 << 20]))


def plan_all(
    circle: Circle, cut: Cut, passive: set[int], *, rounds: int, seed: int
) -> list[list[Numbers | None]]:
    """Shares of all trainers for so many rounds; returns them by round and node."""
    weights = len(circle.nodes[0].weights)
    by_node: list[list[Numbers] | None] = []
    for number in range(len(circle.nodes)):
        if number in passive:
            circle.sleep(number)
            by_node.append(None)
            continue
        shares = list(make_shares(np.random.default_rng([seed, number]), weights, rounds))
        for share in shares:
            circle.plan(number, share, cut)
        by_node.append(shares)
    return [[None if shares is None else shares[each] for shares in by_node] for each in range(rounds)]


def check_results(
    circle: Circle, shares: list[list[Numbers | None]], cut: Cut, *, half: bool = False
) -> None:
    """All nodes have all rounds, their sums to the bit, and the weights that follow."""
    weights = initial_weights(len(circle.nodes[0].weights)).copy()
    exact = weights.astype(np.float64)
    scale = np.abs(exact)
    for number, of_round in enumerate(shares):
        sums = ring_sum(of_round, cut, half=half)
        given = [share for share in of_round if share is not None]
        weights = weights + sums * np.float32(1 / len(given))
        mean = np.mean(np.array(given, np.float64), axis=0)
        exact = exact + mean
        for node in circle.nodes:
            assert node.completed[number].round == number + 1
            assert node.completed[number].contributors == len(given)
            assert node.results[number][: len(sums)].tobytes() == sums.tobytes()
        if not half:
            scale += np.abs(np.array(given, np.float64)).sum(axis=0)
            assert (np.abs(weights - exact) <= 2.0**-24 * (len(given) + 2) * (number + 1) * scale).all()
    for node in circle.nodes:
        assert node.weights.tobytes() == weights.tobytes()
        assert len(node.completed) == len(shares)
        assert node.replica.lattice.recompute_digest() == node.replica.lattice.digest
        assert node.replica.frontier.rows() == circle.nodes[0].replica.frontier.rows()
        assert not node.alarms


@SETTINGS
@given(
    ring=rings(), half=st.booleans(), segment=st.sampled_from([1, 7, 100, 1 << 16]), seed=st.integers(0, 999)
)
def test_all_nodes_have_the_sums_in_ring_order_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
    ring: tuple[int, int, int, set[int], int],
    half: bool,
    segment: int,
    seed: int,
) -> None:
    nodes, weights, buckets, passive, credit = ring
    monkeypatch.setattr("p2psgd.core.ring.chunks.SEGMENT_NUMBERS", max(segment, weights // 200))
    circle, cut = Circle(nodes, weights, half=half, credit_bytes=credit), cut_evenly(weights, buckets)
    shares = plan_all(circle, cut, passive, rounds=ROUNDS, seed=seed)
    circle.begin(range(nodes))
    with np.errstate(over="ignore", invalid="ignore"):
        circle.run(Random(seed))
        check_results(circle, shares, cut, half=half)


@SETTINGS
@given(ring=rings(), half=st.booleans(), seed=st.integers(0, 9999))
def test_a_generation_may_stop_at_any_moment_and_another_go_on_with_the_same_shares(
    monkeypatch: pytest.MonkeyPatch, ring: tuple[int, int, int, set[int], int], half: bool, seed: int
) -> None:
    nodes, weights, buckets, passive, credit = ring
    monkeypatch.setattr("p2psgd.core.ring.chunks.SEGMENT_NUMBERS", 1 + weights // 50)
    circle, cut = Circle(nodes, weights, half=half, credit_bytes=credit), cut_evenly(weights, buckets)
    shares = plan_all(circle, cut, passive, rounds=ROUNDS, seed=seed)
    random = Random(seed)
    everybody = list(range(nodes))
    with np.errstate(over="ignore", invalid="ignore"):
        for generation in range(1, 6):
            circle.begin(everybody, view=generation)
            for number in random.sample(everybody, nodes):
                for _ in range(random.randrange(0, 60)):
                    circle.step(random)
                circle.stop(number)
            circle.make_equal(everybody, random)
        circle.begin(everybody, view=9)
        circle.run(random)
        check_results(circle, shares, cut, half=half)


@SETTINGS
@given(nodes=st.integers(3, 7), seed=st.integers(0, 9999))
def test_the_others_do_a_round_again_without_the_one_that_left(nodes: int, seed: int) -> None:
    weights, random = 300, Random(seed)
    circle, cut = Circle(nodes, weights), cut_evenly(weights, 3)
    shares = plan_all(circle, cut, set(), rounds=1, seed=seed)
    lost = random.randrange(nodes)
    rest = [number for number in range(nodes) if number != lost]
    circle.begin(range(nodes))
    for _ in range(random.randrange(20 * nodes)):
        circle.step(random)
    for number in random.sample(rest, len(rest)):
        circle.stop(number)
    for number in rest:
        circle.links[lost, number].clear()
    circle.make_equal(rest, random)
    before = [number for number in rest if circle.nodes[number].completed]
    circle.begin(rest, view=2)
    circle.run(random)
    given = shares[0] if before else [shares[0][number] for number in rest]
    expected = ring_sum(given, cut)
    for number in rest:
        [completed] = circle.nodes[number].completed
        assert (completed.round, completed.contributors, completed.own) == (1, len(given), True)
        assert circle.nodes[number].results[0][:weights].tobytes() == expected.tobytes()
        assert circle.nodes[number].weights.tobytes() == circle.nodes[rest[0]].weights.tobytes()


def test_bits_survive_that_arithmetic_would_not_keep() -> None:
    """One node gives; the others add nothing, not even a zero."""
    share = np.array([-0.0, 3.4028235e38, -1e-45, 1e-45, -1e-38, -0.0], np.float32)
    circle = Circle(3, len(share))
    circle.plan(1, share, [(0, 6)])
    circle.sleep(0)
    circle.sleep(2)
    circle.begin(range(3))
    circle.run(Random(1))
    for node in circle.nodes:
        assert node.results[0][:6].tobytes() == share.tobytes()
        assert node.completed[0].own == node.active
        assert node.weights.tobytes() == circle.nodes[0].weights.tobytes()


def test_arrays_are_summed_between_rounds_of_changes_and_change_no_weight() -> None:
    circle, random = Circle(3, 50), Random(2)
    arrays = [np.arange(200, dtype=np.float32) * (number + 1) for number in range(3)]
    shares = plan_all(circle, [(0, 50)], set(), rounds=1, seed=1)
    for number, array in enumerate(arrays):
        circle.plan(number, array, [(0, 200)], kind=ARRAY)
        circle.plan(number, np.ones(50, np.float32), [(0, 50)])
    circle.begin(range(3))
    circle.run(random)
    after_one = initial_weights(50) + ring_sum(shares[0], [(0, 50)]) * np.float32(1 / 3)
    for node in circle.nodes:
        assert [done.round for done in node.completed] == [1, 2, 3]
        assert node.results[1][:200].tolist() == (6 * arrays[0]).tolist()
        assert node.weights.tobytes() == (after_one + np.float32(3) * np.float32(1 / 3)).tobytes()
        [row] = node.replica.frontier.rows()
        assert (row.sequence, row.steps) == (1 << 32 | 3, 3)


def test_what_a_round_costs_on_the_wire() -> None:
    """58 MB: 2 (N - 1) K / N numbers from each node, and less than 1 % more."""
    nodes, weights = 4, 14_500_000
    circle, cut = Circle(nodes, weights), cut_evenly(weights, 12)
    share = np.ones(weights, np.float32)
    for number in range(nodes):
        circle.plan(number, share, cut)
    circle.begin(range(nodes))
    circle.run(Random(3))
    for node in circle.nodes:
        assert node.completed
        numbers = 2 * (nodes - 1) * weights * 4 / nodes
        assert numbers <= node.bytes_sent < 1.01 * numbers
        assert node.bytes_sent < 1.0005 * numbers  # what it is today


def test_a_round_does_not_wait_for_credit_of_its_last_sums() -> None:
    """The right neighbour's link is stuck: a round is complete here, what is left of it goes out before the
    next.
    """
    circle, cut = Circle(3, 90, credit_bytes=1), [(0, 90)]
    shares = plan_all(circle, cut, set(), rounds=2, seed=4)
    circle.begin(range(3))
    circle.run(Random(4))
    check_results(circle, shares, cut)


def test_who_is_waited_for() -> None:
    circle = Circle(5, 100)
    for number in range(5):
        circle.plan(number, np.ones(100, np.float32), [(0, 100)])
    circle.begin(range(5))
    random = Random(1)
    while any(queue for queue in circle.links.values()) or any(
        number != 2 and circle.may_give(number) for number in range(5)
    ):
        ready = [link for link, queue in circle.links.items() if queue]
        if ready:
            circle.deliver(*random.choice(ready))
        else:
            circle.give(next(number for number in (0, 1, 3, 4) if circle.may_give(number)))
    incarnations = [node.me for node in circle.nodes]
    missing = [node.rounds.missing for node in circle.nodes]
    assert missing[1] == [
        incarnations[2]
    ]  # the right neighbour knows best: all it needs of the others has come
    assert missing[3] == [incarnations[0], incarnations[1], incarnations[2], incarnations[4]]
    assert missing[0] == [incarnations[1], incarnations[2]]
    assert all(incarnations[2] in each for each in missing)
    assert [node.rounds.contributed for node in circle.nodes] == [True, True, False, True, True]
