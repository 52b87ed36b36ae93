"""The residual pass of a whole send, against one pass per weight written in numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.client.compute import Group, ResidualPass, pass_over, words_max
from p2psgd.wire import codec

QUANTUM = 2.0**-20
TENSORS = (("in", (30, 10)), ("bias", (30,)), ("middle", (7, 10)), ("scale", ()), ("out", (99,)))
SIZES = [math.prod(shape) for _, shape in TENSORS]
NAMES = [name for name, _ in TENSORS]
WEIGHTS = 500
Floats = NDArray[np.float32]


class Residual:
    """A sweep and its two buffers, as a link holds them."""

    def __init__(self, indices_max: int = WEIGHTS) -> None:
        self.sweep = ResidualPass(TENSORS, indices_max=indices_max, quantum=QUANTUM)
        self.words = np.empty(words_max(indices_max, TENSORS), np.uint32)
        self.now: Floats = np.zeros(WEIGHTS, np.float32)
        self.then: Floats = np.zeros(WEIGHTS, np.float32)

    def run(self, delta: Floats, step: int | Mapping[str, int]) -> dict[int, list[int]]:
        """Sweep and flip; the words by step."""
        passes = partial(pass_over, self.now, delta, self.then, words=self.words)
        swept = self.sweep.run(passes, self.sweep.groups(step))
        self.now, self.then = self.then, self.now
        self.counts = self.sweep.count(swept)
        return {group.magnitude: words.tolist() for group, words in swept}


def by_weight(steps: Mapping[str, int]) -> NDArray[np.int64]:
    return np.repeat([steps[name] for name in NAMES], SIZES)


def test_tensors_of_one_step_are_one_group_and_neighbours_one_range() -> None:
    sweep = ResidualPass(TENSORS, indices_max=WEIGHTS, quantum=QUANTUM)
    whole = [Group(4, ((0, WEIGHTS),), WEIGHTS)]
    assert sweep.groups(4) == whole
    assert sweep.groups(dict.fromkeys(NAMES, 4)) == whole
    assert sweep.groups({"out": 1, "in": 2, "bias": 2, "middle": 1, "scale": 2}) == [
        Group(2, ((0, 330), (400, 401)), 331),
        Group(1, ((330, 400), (401, 500)), 169),
    ]


def test_a_send_is_shared_among_groups_by_their_weights() -> None:
    sweep = ResidualPass(TENSORS, indices_max=50, quantum=QUANTUM)
    steps = {name: 1 + number for number, name in enumerate(NAMES)}
    assert [group.room for group in sweep.groups(steps)] == [30, 3, 7, 1, 9]
    assert sweep.groups(1)[0].room == 50


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (0, "threshold must be an int, a number of quanta"),
        (True, "it is True"),
        (dict.fromkeys(NAMES, 1) | {"out": 2**20 + 1}, "threshold of 'out' must be .* it is 1048577"),
        (dict.fromkeys(NAMES, 1) | {"out": 1.0}, "threshold of 'out' must be .* it is 1.0"),
        (
            dict.fromkeys(NAMES[1:], 1),
            "threshold must name every tensor, 'in', 'bias'.* and no other: 'in' has none",
        ),
        (dict.fromkeys([*NAMES, "more"], 1), "there is no tensor 'more'"),
    ],
)
def test_steps_that_will_not_do_are_refused(step: int | Mapping[str, int], words: str) -> None:
    with pytest.raises(TrainerError, match=words):
        ResidualPass(TENSORS, indices_max=WEIGHTS, quantum=QUANTUM).groups(step)


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=5, max_size=5), min_size=1, max_size=8),
    st.sampled_from([1, 20, 100, WEIGHTS]),
    st.integers(0, 2**32 - 1),
)
def test_whatever_the_steps_each_weight_follows_strom_and_nothing_is_lost(
    sends: list[list[int]], indices_max: int, seed: int
) -> None:
    residual = Residual(indices_max)
    chance = np.random.default_rng(seed)
    total = np.zeros(WEIGHTS)
    sent = np.zeros(WEIGHTS)
    for numbers in sends:
        steps = dict(zip(NAMES, numbers, strict=True))
        threshold = by_weight(steps) * QUANTUM
        delta = (chance.integers(-12, 13, WEIGHTS) * (QUANTUM / 4)).astype(np.float32)
        total += delta
        over = np.abs(residual.now + delta) > threshold
        found = residual.run(delta, steps)
        for step, words in found.items():
            indices = np.array(words) >> 1
            assert (np.diff(indices) > 0).all()
            assert over[indices].all()
            assert (by_weight(steps)[indices] == step).all()
            sent[indices] += np.where(np.array(words) & 1, -step, step) * QUANTUM
        np.testing.assert_array_equal(residual.now + sent, total)
        all_words = [word >> 1 for words in found.values() for word in words]
        assert len(all_words) <= indices_max + len(TENSORS)
        if indices_max == WEIGHTS:
            assert len(all_words) == np.count_nonzero(over)
        ends = np.cumsum(SIZES)
        assert residual.counts == {
            name: sum(end - size <= index < end for index in all_words)
            for name, size, end in zip(NAMES, SIZES, ends.tolist(), strict=True)
        }


@pytest.mark.parametrize("alternate", [False, True])
def test_no_weight_starves_when_all_have_something_to_send_all_the_time(alternate: bool) -> None:
    """Also when groups fall apart and come together again between the sends."""
    residual = Residual(indices_max=50)
    delta = np.full(WEIGHTS, 1.5 * QUANTUM, np.float32)
    parted = {"in": 1, "bias": 1, "middle": 2, "scale": 2, "out": 1} if alternate else dict.fromkeys(NAMES, 1)
    last = np.zeros(WEIGHTS, np.int64)
    longest = 0
    for turn in range(1, 61):
        found = residual.run(delta, parted if turn % 2 else 1)
        for words in found.values():
            last[np.array(words) >> 1] = turn
        longest = max(longest, int((turn - last).max()))
    assert longest <= (20 if alternate else 9)


def test_a_sweep_that_wraps_inside_a_range_gives_sorted_words() -> None:
    residual = Residual(indices_max=200)
    delta = np.full(WEIGHTS, 1.5 * QUANTUM, np.float32)
    delta[300:330] = 0
    steps = {"in": 1, "bias": 2, "middle": 1, "scale": 1, "out": 1}  # 470 weights of step 1, 188 words a send
    turns = [[word >> 1 for word in residual.run(delta, steps)[1]] for _ in range(3)]
    low = [*range(300), *range(330, 500)]
    assert turns == [low[:188], low[188:376], sorted(low[376:] + low[:94])]


def test_a_sum_that_is_not_finite_leaves_the_source_and_the_next_start_alone() -> None:
    residual = Residual(indices_max=50)
    delta = np.full(WEIGHTS, 1.5 * QUANTUM, np.float32)
    residual.run(delta, 1)
    before = residual.now.tobytes()
    bad = delta.copy()
    bad[-1] = np.nan
    with pytest.raises(ValueError, match="at weight 499"):
        residual.run(bad, {"in": 1, "bias": 2, "middle": 3, "scale": 1, "out": 1})
    assert residual.now.tobytes() == before
    assert [word >> 1 for word in residual.run(delta, 1)[1]] == [*range(50, 100)]


def test_words_at_the_highest_indices_are_counted_to_their_tensors() -> None:
    half = codec.WEIGHTS_MAX // 2
    sweep = ResidualPass((("low", (half,)), ("high", (half,))), indices_max=8, quantum=QUANTUM)
    words = np.array([0, half * 2 - 1, half * 2, 2**32 - 1], np.uint32)
    assert sweep.count([(sweep.groups(1)[0], words)]) == {"low": 2, "high": 2}
