"""A recipe's loss over all data, minimized in lockstep: what it is, its end, and what is refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.client.link import Link
from p2psgd.recipes.datasets import load_data_of
from p2psgd.recipes.full_batch import FullBatchTraining, RecipeLoss, minimize
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.lbfgs import Lbfgs, Vector
from p2psgd.recipes.model import flat, initial_weights
from p2psgd.recipes.recipe import Recipe, parse_recipe
from p2psgd.recipes.shared_state import Offer, SharedState


def recipe(data: str, hidden: list[int] | None = None, **settings: Any) -> Recipe:
    keys = {"name": "mine", "data": data, "hidden": hidden or [], "run": {"mode": "closure"}}
    keys["activation"] = "sigmoid"  # ReLU has kinks, where no step may be small enough
    return parse_recipe({**keys, "lbfgs": settings}, where="recipe mine.toml")


def few_samples(folder: Path, seed: int = 1) -> str:
    """A data file of 90 samples in three classes."""
    random = np.random.default_rng(seed)
    train, test = random.normal(size=(2, 90, 4)).astype(np.float32)
    labels = np.arange(90) % 3
    np.savez(folder / "few.npz", x_train=train, y_train=labels, x_test=test, y_test=labels)
    return str(folder / "few.npz")


class SumOfParts(Link):
    """A link that evaluates by itself."""

    def __init__(self) -> None:
        pass

    def _evaluate(self, function: Any, point: Any, data: Any, *, portions: int | None = None) -> Any:
        ends = [data.samples * number // (portions or 1) for number in range((portions or 1) + 1)]
        parts = [function(point, range(begin, end)) for begin, end in itertools.pairwise(ends)]
        return sum(loss for loss, _ in parts), sum(gradient for _, gradient in parts)


def objective(of: Recipe) -> tuple[RecipeLoss, Vector]:
    dataset = load_data_of(of)
    shape = net_shape(of, dataset)
    return RecipeLoss(of, dataset, shape, SumOfParts()), flat(initial_weights(shape, of.seed)).astype(
        np.float64
    )


@pytest.mark.parametrize("hidden", [[], [5]])
def test_the_gradient_is_that_of_the_loss(tmp_path: Path, hidden: list[int]) -> None:
    function, point = objective(recipe(few_samples(tmp_path), hidden, l2=0.1))
    _, gradient = function(point)
    for place in range(0, point.size, 3):
        aside = np.zeros_like(point)
        aside[place] = 1e-6
        slope = (function(point + aside)[0] - function(point - aside)[0]) / 2e-6
        assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_the_loss_is_a_mean_over_the_samples_and_half_of_l2(tmp_path: Path) -> None:
    data = few_samples(tmp_path)
    plain, point = objective(recipe(data, l2=0.0, portions=1))
    cut, _ = objective(recipe(data, l2=0.0, portions=7))
    decayed, _ = objective(recipe(data, l2=0.2))
    assert plain(np.zeros_like(point))[0] == pytest.approx(np.log(3))
    assert cut(point)[0] == pytest.approx(plain(point)[0], rel=1e-12)
    assert decayed(point)[0] == pytest.approx(plain(point)[0] + 0.1 * float(point @ point), rel=1e-12)


def test_other_data_of_as_many_samples_have_another_digest(tmp_path: Path) -> None:
    one, again, other = (objective(recipe(few_samples(tmp_path, seed)))[0]._data.digest for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(("own", "begins"), [(7, 3), (7, 0), (3, 3), (0, 3)])
def test_a_node_with_a_newer_state_than_the_run_began_at_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: int, begins: int
) -> None:
    of = recipe(few_samples(tmp_path))
    _, start = objective(of)
    state = {**Lbfgs(lambda x: (float(x @ x), 2 * x), start).state, "iterations": begins}

    class Began(SharedState):
        def __init__(self, *_: Any) -> None:
            self.own = Offer(own, 1)

        def fetch(self) -> dict[str, Any] | None:
            return state if begins else None

    monkeypatch.setattr("p2psgd.recipes.full_batch.SharedState", Began)
    monkeypatch.setattr(SumOfParts, "restored", None, raising=False)
    said: list[str] = []
    training = FullBatchTraining(
        of, load_data_of(of), SumOfParts(), interrupted=lambda: False, say=said.append
    )
    assert training._begin(start).iterations == begins
    words = f"this node holds iteration {own}, and the run began at {begins} without it"
    assert any(line.startswith(words) for line in said) is (own > begins)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PSGD_ALONE", "1")


def test_it_ends_at_a_minimum_twice_with_the_same_bits(alone: None, tmp_path: Path) -> None:
    data = few_samples(tmp_path)
    said: list[str] = []
    for _ in range(2):
        minimize(recipe(data, [3], l2=0.05, loss_tolerance=0.0), say=said.append)
    ends = [line for line in said if "done, since" in line]
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert re.search("done, since no number of the gradient is above 1e-05; the weights have digest", ends[0])


def test_it_makes_no_more_iterations_than_it_is_asked_for(alone: None, tmp_path: Path) -> None:
    said: list[str] = []
    minimize(recipe(few_samples(tmp_path)), steps=3, say=said.append)
    assert said[-1].startswith("iteration 3: ")
    assert "all 3 iterations are made" in said[-1]


def test_a_history_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    large = recipe("speech-small", [4096, 4096], history=100)
    with pytest.raises(UsageError, match="give a smaller history") as caught:
        minimize(large)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
