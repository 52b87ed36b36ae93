"""Two to five trainings in rounds, on links in one process."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from benchmarks.trace import TraceEvents
from p2psgd.base.errors import UsageError
from p2psgd.recipes.datasets import Dataset, load_dataset
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.model import initial_weights
from p2psgd.recipes.recipe import Recipe, Told, load_recipe
from p2psgd.recipes.schedule import RoundPlan, RunPart
from p2psgd.recipes.training import RingTraining, TrainingContext
from tests import DEADLINE_S
from tests.recipes.fake_link import as_link
from tests.recipes.fake_ring import FakeRing, FakeRingLink

LAYERS = ["layer2.bias", "layer2.weight", "layer1.bias", "layer1.weight"]  # as back-propagation makes them


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def quick(payload: str = "sparse", **changes: Any) -> Recipe:
    """The digits' recipe, shortened, in a ring."""
    return load_recipe("digits", Told("ring", payload)).model_copy(
        update={"batch": 16, "epochs": 6, "hold_epochs": 3.0, "halve_every_epochs": 1.0, **changes}
    )


def ring(recipe: Recipe, dataset: Dataset, nodes: int) -> FakeRing:
    initial = initial_weights(net_shape(recipe, dataset), recipe.seed)
    return FakeRing(initial, recipe.quantum, nodes, dense=recipe.run.trains.dense)


def training(
    recipe: Recipe, dataset: Dataset, link: FakeRingLink, *, steps: int | None = None, **more: Any
) -> RingTraining:
    part = RunPart(
        rank=link.node, world_size=len(link.net.links), steps=steps, seconds=more.pop("seconds", None)
    )
    plan = RoundPlan(recipe, len(dataset.train.labels), part)
    return RingTraining(recipe, dataset, plan, as_link(link), TrainingContext(**more))


def run_together(net: FakeRing, parts: list[RingTraining]) -> None:
    """Run each in a thread of its own, closing its link at its end, and fail with what one of them raises."""
    errors: list[BaseException] = []

    def run(part: RingTraining, link: FakeRingLink) -> None:
        try:
            part.run()
            link.close(finished=True)
        except BaseException as error:
            errors.append(error)
            link.close()

    threads = [
        threading.Thread(target=run, args=pair, daemon=True) for pair in zip(parts, net.links, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def trained(recipe: Recipe, dataset: Dataset, nodes: int, **more: Any) -> FakeRing:
    net = ring(recipe, dataset, nodes)
    run_together(net, [training(recipe, dataset, link, **more) for link in net.links])
    return net


@pytest.mark.parametrize("payload", ["sparse", "dense"])
def test_four_nodes_learn_the_digits_and_end_with_the_round(digits: Dataset, payload: str) -> None:
    recipe = quick(payload, learning_rate=0.1 if payload == "sparse" else 0.4)
    net = trained(recipe, digits, 4)
    assert all(np.array_equal(link.weights, net.links[0].weights) for link in net.links)
    accuracies = [link.reports[-1]["test_accuracy"] for link in net.links]
    assert all(isinstance(accuracy, float) and accuracy > 0.9 for accuracy in accuracies)
    assert net.rounds == training(recipe, digits, net.links[0])._plan.rounds
    assert sum(int(str(link.reports[-1]["samples"])) for link in net.links) == 6 * 1437


@pytest.mark.parametrize("payload", ["sparse", "dense"])
def test_the_same_recipe_gives_the_same_bits_again(digits: Dataset, payload: str) -> None:
    first, second = (trained(quick(payload), digits, 3, steps=40) for _ in range(2))
    assert np.array_equal(first.links[0].weights, second.links[2].weights)


def test_in_the_warm_start_the_others_follow_and_count_no_mini_batch(digits: Dataset) -> None:
    net = trained(quick(warm_start=0.25), digits, 3, steps=20)
    assert net.rounds == 20
    assert [link.steps for link in net.links] == [20, 15, 15]
    assert [link.skipped for link in net.links] == [[], [*range(1, 6)], [*range(1, 6)]]
    assert net.links[1].reports[0]["waits"] == "rank 0 trains alone for the warm start, round 1 of 5"


def test_a_dense_ring_has_no_warm_start_and_equals_one_node_with_the_whole_batch(digits: Dataset) -> None:
    recipe = quick("dense", batch=16)
    net = trained(recipe, digits, 4, steps=50)
    assert [link.skipped for link in net.links] == [[]] * 4
    one = trained(recipe.model_copy(update={"batch": 64}), digits, 1, steps=50)
    ours, theirs = net.links[0].weights, one.links[0].weights
    assert not np.array_equal(theirs, one.initial)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


def test_layers_are_begun_as_back_propagation_has_them(digits: Dataset) -> None:
    recipe = quick("dense")
    net = ring(recipe, digits, 1)
    seen: list[bool] = []  # was the first layer's gradient whole when the output layer was begun?
    link = net.links[0]
    begin = link.allreduce_begin

    def noting(name: str) -> None:
        if name == "layer2.bias":
            seen.append(bool(link.proposed["layer1.weight"].any()))
        begin(name)

    link.allreduce_begin = noting  # type: ignore[method-assign]
    run_together(net, [training(recipe, digits, link, steps=3)])
    assert net.begun == LAYERS * 3
    assert seen == [False] * 3


def test_all_nodes_train_at_one_rate_in_every_round(digits: Dataset) -> None:
    """Samples on the two sides of an epoch's end are in one round, and the rate is halved there."""
    recipe = quick("dense", batch=10)
    parts = [training(recipe, digits, link) for link in ring(recipe, digits, 4).links]
    assert parts[0]._plan.rounds is not None
    for number in range(1, parts[0]._plan.rounds + 1):
        assert len({part._learning_rate(number, 0.0) for part in parts}) == 1


def test_a_trainer_that_comes_late_goes_on_with_the_round_of_all(digits: Dataset) -> None:
    recipe = quick(warm_start=0.0)
    net = ring(recipe, digits, 2)
    net.rounds = 30
    run_together(net, [training(recipe, digits, link, steps=40) for link in net.links])
    assert [link.steps for link in net.links] == [10, 10]
    late = net.links[0]
    training(recipe, digits, late, steps=40).run()
    assert late.steps == 10


def test_a_run_by_time_ends_by_each_nodes_clock_and_the_others_go_on(digits: Dataset) -> None:
    recipe = quick(warm_start=0.1)
    net = ring(recipe, digits, 2)
    first, second = net.links

    def clock() -> float:
        return float(net.rounds)

    parts = [training(recipe, digits, first, seconds=20.0, clock=clock)]
    parts += [training(recipe, digits, second, seconds=40.0, clock=clock)]
    run_together(net, parts)
    assert net.rounds == 40
    assert (first.steps, first.finished) == (20, True)
    assert second.skipped == [1, 2, 3, 4]
    assert second.steps == 36


@pytest.mark.parametrize(("rounds_before", "trained"), [(0, 20), (25, 0)])
def test_time_counts_from_the_first_round_and_for_a_later_life_from_the_start(
    digits: Dataset, rounds_before: int, trained: int
) -> None:
    recipe = quick("dense")
    net = ring(recipe, digits, 1)
    net.rounds = rounds_before
    part = training(
        recipe, digits, net.links[0], seconds=20.0, elapsed_s=25.0, clock=lambda: float(net.rounds)
    )
    run_together(net, [part])
    assert net.links[0].steps == trained


def test_the_wait_for_the_first_round_is_not_counted_after_a_restart_either(digits: Dataset) -> None:
    recipe = quick("dense")
    net = ring(recipe, digits, 1)
    (link,) = net.links
    waited: dict[str, Any] = {"seconds": 20.0, "elapsed_s": 25.0, "clock": lambda: float(net.rounds)}
    training(recipe, digits, link, interrupted=lambda: net.rounds == 5, **waited).run()
    assert link.make_state is not None
    link.restored = {**link.make_state(), "kept_at": time.time() - 3}
    training(recipe, digits, link, **waited).run()
    assert link.steps == 20 - 3


@pytest.mark.parametrize("payload", ["sparse", "dense"])
@pytest.mark.parametrize("by_signal", [True, False])
def test_an_end_is_heeded_also_while_a_round_waits_for_others(
    digits: Dataset, payload: str, by_signal: bool
) -> None:
    recipe = quick(payload, warm_start=0.0)
    net = ring(recipe, digits, 2)
    link = net.links[0]
    wanted: list[bool] = []
    wait = link.wait

    def waiting(timeout_s: float) -> bool:
        if 0 in net.given:
            wanted.append(True)
            link.stopping = not by_signal
        return wait(0.0)

    link.wait = waiting  # type: ignore[method-assign]
    training(recipe, digits, link, interrupted=lambda: by_signal and bool(wanted)).run()
    assert net.rounds == 0
    assert link.steps == 1
    assert (link.reports[-1]["test_accuracy"] is None) == by_signal


def test_what_is_kept_brings_a_restarted_trainer_the_rate_and_the_thresholds(digits: Dataset) -> None:
    recipe = quick(tau=None, density=0.02, warm_start=0.0)
    whole = trained(recipe, digits, 1, steps=40).links[0]
    net = ring(recipe, digits, 1)
    link = net.links[0]
    ended = training(recipe, digits, link, steps=40, interrupted=lambda: net.rounds == 22)
    ended.run()
    assert link.make_state is not None
    link.restored = link.make_state()
    training(recipe, digits, link, steps=40).run()
    assert link.thresholds == whole.thresholds
    assert np.array_equal(link.weights, whole.weights)


def test_a_net_that_diverges_is_said_before_anything_of_it_is_given(digits: Dataset) -> None:
    net = ring(quick("dense"), digits, 1)
    net.links[0].weights[:] = np.inf
    with pytest.raises(UsageError, match=r"training diverged: the loss is nan after 0 steps .* lower"):
        training(quick("dense"), digits, net.links[0], steps=3).run()
    assert net.begun == []


def test_a_trace_shows_each_round_and_what_is_begun_in_it(digits: Dataset) -> None:
    trace = TraceEvents()
    recipe = quick("dense")
    net = ring(recipe, digits, 1)
    run_together(net, [training(recipe, digits, net.links[0], steps=2, trace=trace)])
    names = [event["name"] for event in trace.events]
    assert names[0] == "wait for the round"
    assert [name for name in names if name.startswith("round ")] == ["round 1", "round 2"]
    assert [name for name in names if name.startswith("begin ")] == [f"begin {name}" for name in LAYERS * 2]
    assert {"load samples", "gradient", "wait for the round", "apply the round"} <= set(names)
    assert net.links[0].reports[-1]["timed_steps"] == 2
