"""Rules against their formulas in float64, and their state wherever it is kept."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.core.owners.rules import make_rule
from p2psgd.core.owners.rules.rule import OwnerRule, RangeState
from p2psgd.wire.rule import RULES, parse_rule
from p2psgd.wire.rule_state import Kind, RuleState

WEIGHTS = 12


def rule_of(text: str, *, size: int = WEIGHTS) -> OwnerRule:
    rule = make_rule(parse_rule(text))
    assert rule is not None
    assert rule.state.move((0, size)) == []
    return rule


def places(*indices: int) -> NDArray[np.int64]:
    return np.array(indices, np.int64)


def floats(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


def test_a_sum_needs_no_rule() -> None:
    assert make_rule(parse_rule("sum")) is None
    assert all(make_rule(parse_rule(name)) is not None for name in RULES if name != "sum")


def test_adagrad_is_its_formula() -> None:
    rule = rule_of("adagrad(epsilon=0.001, initial=0.25)")
    squares = dict.fromkeys(range(WEIGHTS), 0.0)
    for gradient, rate in (([0.5, -0.5], 0.1), ([-2.0, 0.125], 0.1), ([0.5, 1.0], 0.05)):
        for index, value in zip((3, 7), gradient, strict=True):
            squares[index] += value**2
        wanted = [
            -rate * value / (math.sqrt(squares[index] + 0.25) + 0.001)
            for index, value in zip((3, 7), gradient, strict=True)
        ]
        changes = rule.contribute(places(3, 7), floats(*gradient), rate)
        assert changes is not None
        np.testing.assert_allclose(changes, np.array(wanted), rtol=1e-6)
    assert rule.step(floats(*[0.0] * WEIGHTS), 1) is None
    assert rule.state.arrays["squares"].nonzero()[0].tolist() == [3, 7]


def test_a_step_of_adagrad_is_the_rate_at_first_and_shrinks() -> None:
    rule = rule_of("adagrad")
    sizes = []
    for _ in range(100):
        changes = rule.contribute(places(0), floats(3.0), 0.5)
        assert changes is not None
        sizes.append(float(-changes[0]))
    np.testing.assert_allclose(sizes, [0.5 / math.sqrt(count) for count in range(1, 101)], rtol=1e-5)


def test_adamw_is_its_formula_on_the_mean_of_what_came() -> None:
    rule = rule_of("adamw(beta1=0.8, beta2=0.9, epsilon=0.001, weight_decay=0.1)", size=2)
    weights, first, second = floats(2.0, -4.0), [0.0, 0.0], [0.0, 0.0]
    for step, contributions in enumerate(([(1.0, 0.0), (0.0, -3.0)], [(0.5, 0.5)], [(0.0, 2.0)]), 1):
        for values in contributions:
            kept = [index for index, value in enumerate(values) if value]
            assert rule.contribute(places(*kept), floats(*(values[index] for index in kept)), 0.1) is None
        wanted = []
        for index in range(2):
            mean = sum(values[index] for values in contributions) / len(contributions)
            first[index] = 0.8 * first[index] + 0.2 * mean
            second[index] = 0.9 * second[index] + 0.1 * mean**2
            scale = math.sqrt(second[index] / (1 - 0.9**step)) + 0.001
            wanted.append(-0.1 * first[index] / (1 - 0.8**step) / scale - 0.1 * 0.1 * float(weights[index]))
        changes = rule.step(weights, len(contributions))
        assert changes is not None
        np.testing.assert_allclose(changes, np.array(wanted), rtol=1e-5)
        assert rule.step(weights, 1) is None  # nothing has come


def test_nesterov_is_its_formula_on_the_mean_of_what_came() -> None:
    rule = rule_of("nesterov(momentum=0.8)", size=2)
    weights, velocity = floats(2.0, -4.0), [0.0, 0.0]
    for contributions, rate in (
        ([(1.0, 0.0), (0.0, -3.0)], 0.1),
        ([(0.5, 0.5)], 0.1),
        ([(0.0, 2.0), (0.5, 1.0)], 0.7),
    ):
        for values in contributions:
            kept = [index for index, value in enumerate(values) if value]
            assert rule.contribute(places(*kept), floats(*(values[index] for index in kept)), rate) is None
        wanted = []
        for index in range(2):
            mean = sum(values[index] for values in contributions) / len(contributions)
            velocity[index] = 0.8 * velocity[index] + mean
            wanted.append(-rate * (mean + 0.8 * velocity[index]))
        changes = rule.step(weights, len(contributions))
        assert changes is not None
        np.testing.assert_allclose(changes, np.array(wanted), rtol=1e-5)
        np.testing.assert_allclose(rule.state.arrays["velocity"], np.array(velocity), rtol=1e-5)
        assert rule.step(weights, 1) is None  # nothing has come


def test_nesterov_without_momentum_is_sgd_on_the_mean() -> None:
    rule = rule_of("nesterov(momentum=0)", size=2)
    for _ in range(3):
        rule.contribute(places(0), floats(3.0), 0.5)
        rule.contribute(places(0, 1), floats(1.0, -1.0), 0.5)
        changes = rule.step(floats(0.0, 0.0), 2)
        assert changes is not None
        assert changes.tolist() == [-1.0, 0.25]


@pytest.mark.parametrize("text", ["adagrad", "adamw", "nesterov"])
@pytest.mark.parametrize("size", [0.0, 3e38, -3e38])
def test_no_gradient_ends_a_rule(text: str, size: float) -> None:
    rule = rule_of(text)
    with np.errstate(all="ignore"):  # as the aggregator has it
        for _ in range(3):
            rule.contribute(places(1), floats(size), 100.0)
            rule.step(floats(*[0.0] * WEIGHTS), 1)
    assert rule.state.arrays.keys()


# -- the state of a range


DECAYS = {"first": 0.5, "second": 0.75}


def state_of(begin: int, end: int) -> RangeState:
    state = RangeState(DECAYS, squares="second")
    state.move((begin, end))
    return state


def spare(state: RangeState, begin: int, end: int) -> RuleState:
    return replace(state.cut(begin, end), kind=Kind.SPARE)


def let_pass(state: RangeState, values: NDArray[np.float32]) -> None:
    """A step that adds these values, of all weights, to what the range keeps."""
    state.steps += 1
    for name, array in state.arrays.items():
        array[:] = array * np.float32(DECAYS[name]) + values[slice(*state.range)]


def test_the_state_of_a_lost_part_is_given_away_and_the_rest_kept() -> None:
    state = state_of(2, 8)
    let_pass(state, np.arange(WEIGHTS, dtype=np.float32))
    pieces = state.move((4, 10))
    assert [(piece.range, piece.arrays[0].tolist()) for piece in pieces] == [((2, 4), [2, 3])]
    assert state.arrays["first"].tolist() == [4, 5, 6, 7, 0, 0]
    assert [piece.range for piece in state.move((6, 8))] == [(4, 6)]  # of 8 and 9 nothing is known
    assert [piece.range for piece in state.move((0, 0))] == [(6, 8)]
    assert state.size_bytes == 0


@given(before=st.integers(0, 5), after=st.integers(0, 5), seed=st.integers(0, 99))
def test_what_comes_late_is_as_if_it_had_been_there_from_the_start(
    before: int, after: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    whole, old, new = state_of(0, WEIGHTS), state_of(0, WEIGHTS), state_of(0, WEIGHTS)
    for state_steps, states in ((before, (whole, old)), (after, (whole, new))):
        for _ in range(state_steps):
            values = random.standard_normal(WEIGHTS).astype(np.float32)
            for state in states:
                let_pass(state, values)
    new.add(spare(old, 0, 5))
    new.add(spare(old, 3, WEIGHTS))  # of 3 and 4 it comes twice
    for name, array in whole.arrays.items():
        np.testing.assert_allclose(new.arrays[name], array, atol=1e-5)


@given(before=st.integers(0, 5), after=st.integers(0, 5), seed=st.integers(0, 99))
def test_a_velocity_that_moves_goes_on_as_if_it_had_stayed(before: int, after: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    stays, left, comes = (rule_of("nesterov(momentum=0.5)") for _ in range(3))
    zeros = floats(*[0.0] * WEIGHTS)

    def step(*rules: OwnerRule) -> None:
        gradient = random.standard_normal(WEIGHTS).astype(np.float32)
        for rule in rules:
            rule.contribute(places(*range(WEIGHTS)), gradient, 0.7)
            rule.step(zeros, 1)

    for _ in range(before):
        step(stays, left)
    for _ in range(after):
        step(stays, comes)
    for piece in left.state.move((0, 0)):
        comes.state.add(piece)
    step(stays, comes)
    np.testing.assert_allclose(
        comes.state.arrays["velocity"], stays.state.arrays["velocity"], rtol=0, atol=1e-5
    )


def test_a_state_below_zero_is_refused_of_squares_alone() -> None:
    below = np.full((1, 3), -2, np.float32)
    assert rule_of("nesterov").state.can_be(below)
    assert not rule_of("adagrad").state.can_be(below)
    second = np.array([[-2, -2], [0, 3]], np.float32)
    assert rule_of("adamw").state.can_be(second)
    assert not rule_of("adamw").state.can_be(second[::-1])


@pytest.mark.parametrize("text", ["adagrad", "adamw", "nesterov"])
def test_states_that_others_send_add_up_to_finite_numbers(text: str) -> None:
    state = rule_of(text).state
    most = np.finfo(np.float32).max
    for sign in (1, 1, -1, -1, -1, -1):
        state.add(RuleState(0, 1, np.full((len(state.arrays), WEIGHTS), sign * most, np.float32)))
        assert all(np.isfinite(array).all() for array in state.arrays.values())


def test_what_an_owner_inherited_is_not_added_to_again() -> None:
    old, new = state_of(0, WEIGHTS), state_of(4, 8)
    let_pass(old, np.ones(WEIGHTS, np.float32))
    new.add(spare(old, 0, 6))
    new.add(spare(old, 0, WEIGHTS))
    assert new.arrays["first"].tolist() == [1, 1, 1, 1]
    new.move((2, 8))
    new.add(spare(old, 0, WEIGHTS))
    assert new.arrays["first"].tolist() == [1] * 6
    assert new.steps == 1


def test_what_comes_very_late_is_left_out() -> None:
    old, new = state_of(0, WEIGHTS), state_of(4, 8)
    let_pass(old, np.ones(WEIGHTS, np.float32))
    new.complete()
    new.add(spare(old, 0, WEIGHTS))
    assert not new.arrays["first"].any()


def test_steps_of_before_count_for_what_a_rule_divides_by() -> None:
    old, new = state_of(0, WEIGHTS), state_of(0, WEIGHTS)
    for state, steps in ((old, 5), (new, 2)):
        for _ in range(steps):
            let_pass(state, np.ones(WEIGHTS, np.float32))
    new.add(spare(old, 0, 6))
    assert new.steps == 7
    new.add(spare(old, 6, WEIGHTS))
    assert new.steps == 7
    assert len(set(new.arrays["first"].tolist())) == 1


def test_what_was_moved_is_added_always_and_a_spare_only_to_what_lacks_one() -> None:
    """A member that was gone for a moment gets back what was added meanwhile, beside what it has."""
    here, meanwhile = state_of(0, WEIGHTS), state_of(0, WEIGHTS)
    let_pass(here, np.ones(WEIGHTS, np.float32))
    here.complete()
    let_pass(meanwhile, np.full(WEIGHTS, 2, np.float32))
    here.add(spare(meanwhile, 0, WEIGHTS))
    assert here.arrays["first"].tolist() == [1] * WEIGHTS
    here.add(meanwhile.cut(0, WEIGHTS))
    assert here.arrays["first"].tolist() == [3] * WEIGHTS


def test_the_decay_counts_from_where_a_weight_began_whatever_moves_later() -> None:
    old, new = state_of(0, WEIGHTS), state_of(4, 8)
    let_pass(old, np.ones(WEIGHTS, np.float32))
    for _ in range(4):
        let_pass(new, np.zeros(WEIGHTS, np.float32))
    new.move((4, 9))
    new.add(spare(old, 0, WEIGHTS))
    assert new.arrays["first"].tolist() == [0.5**4] * 4 + [1]


def test_steps_of_a_state_that_is_not_taken_mean_nothing() -> None:
    state = state_of(0, 4)
    state.complete()
    state.add(RuleState(0, 2**63 - 1, np.zeros((2, 4), np.float32), Kind.SPARE))
    assert state.steps == 0


def test_a_state_after_the_most_steps_leaves_room_for_more() -> None:
    state = state_of(0, WEIGHTS)
    for _ in range(3):
        let_pass(state, np.ones(WEIGHTS, np.float32))
    last = 2**63 - 1
    state.add(RuleState(0, last, np.zeros((2, 4), np.float32)))
    let_pass(state, np.ones(WEIGHTS, np.float32))
    state.add(RuleState(4, last, np.zeros((2, 4), np.float32)))
    assert 0 < state.steps <= last
    assert (state._begun[8:] >= 0).all()
    state.move((0, WEIGHTS + 1))
    assert (state.arrays["first"][:WEIGHTS] > 0).all()
