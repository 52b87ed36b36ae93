"""train(): what it attaches with, and how it ends."""

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import UsageError
from p2psgd.client.compute import HostCompute, MakeCompute
from p2psgd.recipes import main
from p2psgd.recipes.main import train
from p2psgd.recipes.model import Vector
from p2psgd.recipes.recipe import Recipe, Told, load_recipe
from p2psgd.recipes.schedule import Plan, RunPart
from tests.recipes.fake_link import FakeLink, FakeNet
from tests.recipes.fake_ring import FakeRing

RECIPE = load_recipe("digits")


class Attaching:
    """Stands in for attach(): every link is on a net of its own."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.modes: list[tuple[str, str | None]] = []
        self.share: tuple[int, int] | None = (0, 1)
        self.steps = 0  # of earlier lives

    def __call__(
        self,
        initial: dict[str, Vector],
        *,
        quantum: float,
        label: str,
        two_nodes: str,
        mode: str,
        payload: str | None,
        rule: str | None,
        rounds: bool,
        shards: None,
        make_compute: MakeCompute,
    ) -> FakeLink:
        assert make_compute is HostCompute
        assert shards is None
        assert rule == ("sum" if mode == "owners" else None)
        assert not rounds
        assert (label, two_nodes) == (RECIPE.label, RECIPE.run.two_nodes)
        self.modes.append((mode, payload))
        link: FakeLink
        if mode == "ring":
            (link,) = FakeRing(initial, quantum, 1, dense=payload != "sparse").links
        else:
            (link,) = FakeNet(initial, quantum, 1).links
        link.rank_told = self.share
        link.steps = self.steps
        self.links.append(link)
        return link


@pytest.fixture
def attaching(monkeypatch: pytest.MonkeyPatch) -> Attaching:
    attaching = Attaching()
    monkeypatch.setattr(main, "attach", attaching)
    return attaching


def test_a_trainer_attaches_with_the_recipes_start_and_finishes(attaching: Attaching) -> None:
    train(RECIPE, steps=5)
    (link,) = attaching.links
    assert link.steps == 5
    assert link.finished is True
    assert link.net.quantum == RECIPE.quantum
    assert len(link.weights) == 64 * 64 + 64 + 64 * 10 + 10


def test_the_share_is_the_daemons_unless_it_is_given(
    attaching: Attaching, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def noting(recipe: Recipe, samples: int, part: RunPart) -> Plan:
        seen.append((part.rank, part.world_size))
        return Plan(recipe, samples, part)

    monkeypatch.setattr(main, "Plan", noting)
    train(RECIPE, steps=1)
    attaching.share = (0, 2)
    train(RECIPE, steps=1)
    train(RECIPE, (0, 3), steps=1)
    assert seen == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_mini_batch_end_and_leaves_unfinished(
    attaching: Attaching, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    send: Callable[..., int] = FakeLink.send

    def signalled(link: FakeLink, delta: Vector, step: int, **options: Any) -> int:
        if link.steps == 3:
            os.kill(os.getpid(), number)
        return send(link, delta, step, **options)

    monkeypatch.setattr(FakeLink, "send", signalled)
    train(RECIPE)
    (link,) = attaching.links
    assert link.steps == 4
    assert link.finished is False
    assert link.reports[-1]["test_accuracy"] is None


def test_what_is_refused_is_refused_before_attaching(attaching: Attaching) -> None:
    with pytest.raises(UsageError, match="rank 3/3 does not exist"):
        train(RECIPE, (3, 3))
    with pytest.raises(UsageError, match="give steps or seconds, not both"):
        train(RECIPE, steps=1, seconds=1)
    with pytest.raises(UsageError, match="no such file or folder"):
        train(RECIPE.model_copy(update={"data": "/nowhere/none.npz"}))
    with pytest.raises(UsageError, match="makes a net of 4299948042 weights; at most 2147483648 will do"):
        train(RECIPE.model_copy(update={"hidden": (65_536, 65_536)}))
    assert attaching.links == []


def test_a_node_that_nobody_told_its_share_is_refused(attaching: Attaching) -> None:
    attaching.share = None
    with pytest.raises(UsageError, match="does not know its rank"):
        train(load_recipe("digits"), steps=1)


def test_a_run_by_time_that_began_long_ago_is_over(attaching: Attaching) -> None:
    attaching.steps = 1
    train(RECIPE, seconds=60, started=1.0)
    (link,) = attaching.links
    assert (link.steps, link.finished) == (1, True)
    assert np.array_equal(link.weights, link.net.initial)


def test_a_run_whose_time_is_over_before_its_first_mini_batch_has_not_finished(attaching: Attaching) -> None:
    with pytest.raises(UsageError, match="the 60 s of --seconds were over before the first step"):
        train(RECIPE, seconds=60, started=1.0)
    (link,) = attaching.links
    assert (link.steps, link.finished) == (0, False)


def test_a_recipe_in_rounds_is_trained_in_rounds(
    attaching: Attaching, capsys: pytest.CaptureFixture[str]
) -> None:
    train(RECIPE, steps=1)
    train(load_recipe("digits", Told("ring")), steps=5)
    assert capsys.readouterr().err == ""
    train(load_recipe("digits", Told("ring", "dense-float16")), steps=5)
    assert capsys.readouterr().err == ""  # the recipe is for another mode, and that was asked for
    assert attaching.modes == [
        ("async", None),
        ("ring", "sparse"),
        ("ring", "dense-float16"),
    ]
    assert [link.steps for link in attaching.links] == [1, 5, 5]
