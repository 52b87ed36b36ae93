"""Ternary contributions: three values in a tensor, the right mean, the same bits for the same step."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import p2psgd
from p2psgd.base.errors import TrainerError
from p2psgd.client.ternary import CLIP_SIGMAS, COPIES_MAX, TernaryPass, last_layer
from p2psgd.wire import codec

QUANTUM = 2.0**-20
TENSORS = (("in.weight", (40, 25)), ("in.bias", (40,)), ("out.weight", (3, 40)), ("out.bias", (3,)))
SIZES = (1000, 40, 120, 3)
WEIGHTS = sum(SIZES)
FULL = slice(1040, WEIGHTS)
CHANCE = np.random.default_rng(5)
DELTA = (0.01 * CHANCE.standard_normal(WEIGHTS)).astype(np.float32)
DELTA[1000:1040] += 0.1  # all of them much alike


def contributed(updates: list[tuple[int, NDArray[np.uint32]]]) -> NDArray[np.int64]:
    """Return the sum of updates, by weight, in quanta."""
    total = np.zeros(WEIGHTS, np.int64)
    for magnitude, words in updates:
        assert 1 <= magnitude <= codec.MAGNITUDE_MAX
        assert (np.diff(words.astype(np.int64) >> 1) > 0).all()
        total[words >> 1] += np.where(words & 1, -magnitude, magnitude)
    return total


def ternary(node: int = 0, **options: Any) -> TernaryPass:
    return TernaryPass(TENSORS, quantum=QUANTUM, node=node, **options)


def clipped(delta: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the numbers that contributions have as their mean."""
    expected = delta.astype(np.float64)
    for begin, end in ((0, 1000), (1000, 1040)):
        bound = CLIP_SIGMAS * np.sqrt((expected[begin:end] ** 2).mean())
        expected[begin:end] = np.clip(expected[begin:end], -bound, bound)
    return expected


def test_a_tensor_has_three_values_and_the_last_layer_all() -> None:
    total = contributed(ternary().run(DELTA, 1))
    for begin, end in ((0, 1000), (1000, 1040)):
        sizes = np.unique(np.abs(total[begin:end]))
        bound = CLIP_SIGMAS * float(np.sqrt((DELTA[begin:end] ** 2).mean())) / QUANTUM
        assert len(sizes) == 2
        assert sizes[0] == 0
        assert sizes[1] == pytest.approx(min(bound, float(np.abs(DELTA[begin:end]).max()) / QUANTUM), abs=1.5)
    assert (np.abs(total[FULL] - DELTA[FULL] / QUANTUM) < 1).all()


def test_signs_are_those_of_the_numbers() -> None:
    total = contributed(ternary().run(DELTA, 1))
    chosen = total[:1040] != 0
    assert 200 < chosen.sum() < 800
    assert (np.sign(total[:1040][chosen]) == np.sign(DELTA[:1040][chosen])).all()


def test_the_mean_is_what_was_given() -> None:
    steps = 1000
    total = np.zeros(WEIGHTS)
    for step in range(steps):
        total += contributed(ternary().run(DELTA, step)) * QUANTUM
    expected = clipped(DELTA)
    scale = np.repeat(
        [*(CLIP_SIGMAS * np.sqrt((part**2).mean()) for part in (DELTA[:1000], DELTA[1000:1040])), QUANTUM],
        [1000, 40, 123],
    )
    spread = scale / np.sqrt(steps)  # standard deviations of the mean are at most half of it
    assert (np.abs(total / steps - expected) < 3 * spread).all()


def test_random_numbers_follow_from_node_and_step() -> None:
    first = contributed(ternary(node=3).run(DELTA, 7))
    assert np.array_equal(contributed(ternary(node=3).run(DELTA, 7)), first)
    assert not np.array_equal(contributed(ternary(node=4).run(DELTA, 7)), first)
    assert not np.array_equal(contributed(ternary(node=3).run(DELTA, 8)), first)


def test_zeros_are_nothing() -> None:
    assert ternary().run(np.zeros(WEIGHTS, np.float32), 1) == []


def test_numbers_that_are_all_equal_are_not_clipped() -> None:
    total = contributed(ternary().run(np.full(WEIGHTS, -8 * QUANTUM, np.float32), 1))
    assert (total == -8).all()


def test_without_clipping_the_scale_is_the_largest_number() -> None:
    delta = DELTA.copy()
    delta[17] = 0.5
    total = contributed(ternary(clip_sigmas=np.inf).run(delta, 1))
    assert total[17] == 0.5 / QUANTUM
    assert set(np.abs(total[:1000]).tolist()) == {0, 0.5 / QUANTUM}


def test_what_one_update_cannot_move_goes_in_several() -> None:
    delta = np.full(WEIGHTS, 5.5, np.float32)
    updates = ternary().run(delta, 1)
    excess = contributed(updates) - 5.5 / QUANTUM
    assert ((excess >= 0) & (excess < 6)).all()
    assert sum(1 for _, words in updates if words[0] == 0) == 6


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (3, np.nan, "NaN or infinity among weights 0 to 999: look in the script"),
        (1001, -np.inf, "NaN or infinity among weights 1000 to 1039"),
        (1162, np.nan, "NaN or infinity among weights 1160 to 1162"),
        (1162, COPIES_MAX + 0.5, "a number above 16 among weights 1160 to 1162: lower the learning rate"),
        (1001, 300.0, "a number above 16 among weights 1000 to 1039"),
    ],
)
def test_numbers_that_cannot_be_sent_are_refused_with_their_place(
    place: int, value: float, words: str
) -> None:
    delta = DELTA.copy()
    delta[place] = value
    with pytest.raises(ValueError, match=words):
        ternary().run(delta, 1)


def test_a_number_that_is_clipped_may_be_any() -> None:
    delta = DELTA.copy()
    delta[3] = -20
    assert abs(contributed(ternary().run(delta, 1))[3]) * QUANTUM < CLIP_SIGMAS


def test_tensors_share_updates_of_one_magnitude() -> None:
    tensors = tuple((f"layer{number}", (16, 16)) for number in range(300))
    delta = np.random.default_rng(3).standard_normal(300 * 256).astype(np.float32)
    chosen = TernaryPass(tensors, quantum=QUANTUM, node=0, full_precision=[name for name, _ in tensors])
    updates = chosen.run(delta, 1)
    assert len(updates) < 40
    assert all((np.diff(words.astype(np.int64) >> 1) > 0).all() for _, words in updates)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_types_of_numbers_are_widened(dtype: type) -> None:
    assert len(ternary().run(DELTA.astype(dtype), 1)) > 2


def test_other_tensors_may_go_in_full_precision() -> None:
    chosen = ternary(full_precision=("in.weight",))
    total = contributed(chosen.run(DELTA, 1))
    assert (np.abs(total[:1000] - DELTA[:1000] / QUANTUM) < 1).all()
    assert len(set(np.abs(total[1040:1160]).tolist())) == 2
    with pytest.raises(TrainerError, match=re.escape("there is no tensor 'middle'; there are 'in.weight', ")):
        ternary(full_precision=("middle",))


@pytest.mark.parametrize(
    ("tensors", "last"),
    [
        (TENSORS, {"out.weight", "out.bias"}),
        ((("a", (3, 3)), ("b", (4,))), {"a", "b"}),
        ((("a", (3,)), ("b", ())), {"b"}),
        ((("filter", (8, 3, 3, 3)), ("norm", (8,)), ("scale", ())), {"filter", "norm", "scale"}),
    ],
)
def test_the_last_layer_is_the_last_matrix_and_what_follows(
    tensors: tuple[tuple[str, tuple[int, ...]], ...], last: set[str]
) -> None:
    assert last_layer(tensors) == last


def test_a_link_sends_them_and_refuses_what_does_not_fit() -> None:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in TENSORS}
    run: dict[str, Any] = {"mode": "owners", "rounds": True, "payload": "ternary", "alone": True}
    with pytest.raises(TrainerError, match="full_precision: there is no tensor 'middle'"):
        p2psgd.attach(tensors, **run, full_precision=["middle"])
    with p2psgd.attach(tensors, **run) as link:
        for step in (1, 2):
            link.receive()
            before = link.weights.copy()
            for delta, threshold, words in (
                (DELTA, 5, "threshold 5 is refused: with payload 'ternary' leave it out"),
                (
                    np.where(np.arange(WEIGHTS) == 8, np.nan, DELTA).astype(np.float32),
                    None,
                    "delta is refused",
                ),
            ):
                with pytest.raises(TrainerError, match=words):
                    link.send(delta, threshold)
            assert link.send(DELTA) == sum(link.sent.values())
            link.receive()
            expected = contributed(ternary(node=link.rank).run(DELTA, step))
            assert np.array_equal(link.weights - before, (expected * QUANTUM).astype(np.float32))
            assert not link.residual.any()
            assert link.steps == step
