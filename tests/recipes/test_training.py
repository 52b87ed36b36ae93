"""One to four trainings on links in one process."""

import math
import threading
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.ipc.script_state import pack_state, unpack_state
from p2psgd.recipes import training
from p2psgd.recipes.datasets import Dataset, load_dataset
from p2psgd.recipes.gradients import net_shape
from p2psgd.recipes.model import initial_weights
from p2psgd.recipes.recipe import Recipe, load_recipe
from p2psgd.recipes.schedule import Plan, RunPart
from p2psgd.recipes.training import Training, TrainingContext
from tests import DEADLINE_S
from tests.recipes.fake_link import FakeLink, FakeNet, as_link


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def quick(**changes: Any) -> Recipe:
    """The digits' recipe, shortened."""
    return load_recipe("digits").model_copy(
        update={"batch": 16, "epochs": 6, "hold_epochs": 3.0, "halve_every_epochs": 1.0, **changes}
    )


def links(recipe: Recipe, dataset: Dataset, nodes: int) -> list[FakeLink]:
    return FakeNet(initial_weights(net_shape(recipe, dataset), recipe.seed), recipe.quantum, nodes).links


def trainings(
    recipe: Recipe, dataset: Dataset, ends: list[FakeLink], *, steps: int | None = None
) -> list[Training]:
    samples = len(dataset.train.labels)
    return [
        Training(
            recipe,
            dataset,
            Plan(recipe, samples, RunPart(rank=share, world_size=len(ends), steps=steps)),
            as_link(link),
            TrainingContext(),
        )
        for share, link in enumerate(ends)
    ]


def run_together(parts: list[Training]) -> None:
    """Run each in a thread of its own and fail with whatever one of them raises."""
    errors: list[BaseException] = []

    def run(part: Training) -> None:
        try:
            part.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert not errors


def accuracy(link: FakeLink) -> float:
    value = link.reports[-1]["test_accuracy"]
    assert isinstance(value, float)
    return value


def test_one_node_learns_the_digits(digits: Dataset) -> None:
    recipe = quick()
    (link,) = links(recipe, digits, 1)
    run_together(trainings(recipe, digits, [link]))
    assert accuracy(link) > 0.9
    assert link.steps == math.ceil(6 * 1437 / recipe.batch)
    assert link.reports[-1]["samples"] == 6 * 1437
    assert link.reports[-1]["epoch"] == pytest.approx(6, abs=0.05)


def test_four_nodes_learn_the_digits_and_end_with_equal_bits(digits: Dataset) -> None:
    recipe = quick()
    ends = links(recipe, digits, 4)
    run_together(trainings(recipe, digits, ends))
    for link in ends:
        link.receive()
    assert all(np.array_equal(link.weights, ends[0].weights) for link in ends)
    assert min(accuracy(link) for link in ends) > 0.9
    assert sum(int(str(link.reports[-1]["samples"])) for link in ends) == 6 * 1437


def test_a_sample_weighs_no_more_in_a_short_mini_batch(digits: Dataset) -> None:
    """The last one, of a single sample here, whose own gradient is larger than the mean of all others."""
    recipe = quick(batch=1436, epochs=1, warm_start=0.0)
    (link,) = links(recipe, digits, 1)
    changes: list[float] = []
    send = link.send

    def noting(delta: Any, threshold: int | Mapping[str, int], **more: Any) -> int:
        changes.append(float(np.abs(delta).sum()))
        return send(delta, threshold, **more)

    link.send = noting  # type: ignore[method-assign]
    run_together(trainings(recipe, digits, [link]))
    whole, short = changes
    assert 0 < short < whole / 10


def test_gradients_of_several_mini_batches_are_pushed_as_one_and_updates_fetched_now_and_then(
    digits: Dataset,
) -> None:
    recipe = quick(epochs=2, warm_start=0.0, push_every=3, fetch_every=4)
    (link,) = links(recipe, digits, 1)
    pushed, fetched, send, receive = [], [], link.send, link.receive

    def pushing(delta: Any, threshold: int | Mapping[str, int], *, steps: int = 1, rate: Any = None) -> int:
        pushed.append(steps)
        return send(delta, threshold, steps=steps)

    def fetching() -> int:
        fetched.append(link.steps)
        return receive()

    link.send, link.receive = pushing, fetching  # type: ignore[method-assign]
    (training,) = trainings(recipe, digits, [link])
    run_together([training])
    steps = -(-2 * len(digits.train.labels) // recipe.batch)
    assert pushed == [3] * (steps // 3) + [steps % 3] * (steps % 3 > 0)  # the rest goes out at the end
    assert link.steps == steps
    assert len(fetched) == -(-steps // 4) + 1  # and once before the accuracy is measured


def test_each_mini_batch_of_the_warm_start_is_pushed_by_itself(digits: Dataset) -> None:
    recipe = quick(epochs=1, warm_start=0.5, push_every=5)
    (link,) = links(recipe, digits, 1)
    pushed, send = [], link.send

    def pushing(delta: Any, threshold: int | Mapping[str, int], *, steps: int = 1, rate: Any = None) -> int:
        pushed.append(steps)
        return send(delta, threshold, steps=steps)

    link.send = pushing  # type: ignore[method-assign]
    (training,) = trainings(recipe, digits, [link])
    run_together([training])
    alone = pushed.index(5)
    assert alone > 5
    assert pushed[:alone] == [1] * alone
    assert set(pushed[alone:-1]) == {5}


def test_a_node_computes_at_its_own_mini_batches_that_are_not_pushed_yet(digits: Dataset) -> None:
    """With one node that counts its residual too, that is plain SGD, but for the order of sums."""
    recipe = quick(epochs=1, warm_start=0.0, own_residual=True)
    ends = []
    for every in (1, 5):
        (link,) = links(recipe, digits, 1)
        run_together(trainings(recipe.model_copy(update={"push_every": every}), digits, [link]))
        ends.append(link.weights + link.residual)
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-4)


def test_a_target_density_is_met(digits: Dataset) -> None:
    recipe = quick(tau=None, density=0.02)
    (link,) = links(recipe, digits, 1)
    run_together(trainings(recipe, digits, [link]))
    held = link.counts[len(link.counts) // 4 : len(link.counts) // 2]  # before the rate's first halving
    assert np.mean(held) == pytest.approx(0.02 * len(link.weights), rel=0.2)


def test_the_step_halves_with_the_learning_rate(digits: Dataset) -> None:
    recipe = quick()
    (link,) = links(recipe, digits, 1)
    run_together(trainings(recipe, digits, [link]))
    first = round(recipe.learning_rate * 0.03 / recipe.quantum)
    assert [step for step, _ in groupby(link.thresholds)] == [
        first,
        round(first / 2),
        round(first / 4),
        round(first / 8),
    ]


def test_what_waits_is_a_sum_of_gradients_whatever_the_learning_rate(digits: Dataset) -> None:
    tiny = {"learning_rate": 1e-4, "tau": 1e4}  # nothing is ever sent
    constant, halved = quick(hold_epochs=100.0, **tiny), quick(**tiny)
    sums = []
    for recipe, final in ((constant, 1e-4), (halved, 1e-4 / 8)):
        (link,) = links(recipe, digits, 1)
        run_together(trainings(recipe, digits, [link]))
        assert not any(link.counts)
        sums.append(link.residual / final)
    assert np.allclose(sums[0], sums[1], rtol=1e-3, atol=1e-3 * np.abs(sums[0]).max())


def test_the_others_wait_for_the_warm_start_and_say_so(digits: Dataset) -> None:
    recipe = quick(warm_start=0.5)
    first, second = links(recipe, digits, 2)
    one, other = trainings(recipe, digits, [first, second])
    seen: list[int] = []
    receive = second.receive

    def noting() -> int:
        count = receive()
        if not second.steps:
            seen.append(first.steps)
        return count

    second.receive = noting  # type: ignore[method-assign]
    run_together([one, other])
    warm = int(0.5 * 6 * 1437) // recipe.batch
    assert seen[-1] >= warm
    assert "rank 0 trains alone for the warm start" in str(second.reports[0]["waits"])
    assert second.reports[-1]["waits"] == ""


@pytest.mark.parametrize("updates", [0, 1])
def test_a_trainer_that_hears_of_no_mini_batch_starts_after_a_while(
    digits: Dataset, updates: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "QUIET_S", 0.05)
    recipe = quick()
    ends = links(recipe, digits, 2)
    second = trainings(recipe, digits, ends, steps=30)[1]
    # such as shards that are taken and given back by one whose store fails
    monkeypatch.setattr(ends[1], "receive", lambda: updates)
    second.run()
    assert ends[1].steps == 30
    assert "without a step of rank 0: the warm start is cut short" in capsys.readouterr().err


def test_a_trainer_that_comes_when_others_than_rank_0_train_has_no_warm_start(digits: Dataset) -> None:
    recipe = quick()
    ends = links(recipe, digits, 3)
    late = trainings(recipe, digits, ends, steps=10_000)[1]
    ends[1].peer_steps.update({101: 9, 102: 4})
    late._wait_for_warm_start()
    assert not any(report.get("waits") for report in ends[1].reports)


@pytest.mark.parametrize("died_at", [17, 22])  # at 22 the rate is halved
def test_a_trainer_that_was_at_work_before_goes_on_from_its_count(digits: Dataset, died_at: int) -> None:
    recipe = quick()
    whole, parted = links(recipe, digits, 1)[0], links(recipe, digits, 1)[0]
    trainings(recipe, digits, [whole], steps=40)[0].run()
    first_life = trainings(recipe, digits, [parted], steps=40)[0]
    send = parted.send

    def dying(delta: Any, threshold: int | Mapping[str, int], **more: Any) -> int:
        if parted.steps == died_at:
            raise ConnectionError
        return send(delta, threshold, **more)

    parted.send = dying  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        first_life.run()
    parted.send = send  # type: ignore[method-assign]
    trainings(recipe, digits, [parted], steps=40)[0].run()
    assert parted.steps == 40
    assert np.array_equal(whole.weights, parted.weights)
    assert parted.reports[-1]["samples"] == 40 * recipe.batch


@pytest.mark.parametrize("seconds", [None, 4.0])
@pytest.mark.parametrize("died_at", [17, 22])  # at 22 the rate is halved
def test_what_is_kept_continues_the_run_as_if_nothing_had_happened(
    digits: Dataset, seconds: float | None, died_at: int
) -> None:
    """A density, whose tau is steered by what was sent; a run by time, whose clock is another one now."""
    recipe = quick(tau=None, density=0.02)
    steps = None if seconds else 40

    def life(link: FakeLink, begin: int, *, until: int = 40) -> None:
        def clock() -> float:
            return 1000 * begin + 0.1 * link.steps

        plan = Plan(
            recipe, len(digits.train.labels), RunPart(rank=0, world_size=1, steps=steps, seconds=seconds)
        )
        context = TrainingContext(interrupted=lambda: link.steps == until, clock=clock)
        Training(recipe, digits, plan, as_link(link), context).run()

    whole, first, second = (links(recipe, digits, 1)[0] for _ in range(3))
    life(whole, 0)
    life(first, 0, until=died_at)
    assert first.make_state is not None
    second.restored = unpack_state(np.concatenate(pack_state(first.make_state())))
    second.weights, second.residual = first.weights, first.residual
    second.steps = first.steps
    life(second, died_at)
    assert [*first.thresholds, *second.thresholds] == whole.thresholds
    assert len({str(step) for step in whole.thresholds}) > 10
    assert np.array_equal(second.weights, whole.weights)
    assert np.array_equal(second.residual, whole.residual)
    assert second.reports[-1]["loss"] == whole.reports[-1]["loss"]


def test_what_another_script_has_kept_is_nothing_to_this_one(digits: Dataset) -> None:
    (link,) = links(quick(), digits, 1)
    link.restored = {"elapsed_s": 1e9, "taus": "?", "steps": 0}
    trainings(quick(), digits, [link], steps=2)[0].run()
    assert link.steps == 2


def test_a_later_share_that_was_at_work_before_does_not_wait_again(digits: Dataset) -> None:
    recipe = quick()
    ends = links(recipe, digits, 2)
    ends[1].steps = 5
    trainings(recipe, digits, ends, steps=8)[1].run()
    assert (ends[1].steps, ends[1].waits) == (8, 0)


def test_a_share_that_is_done_only_says_how_good_it_is(digits: Dataset) -> None:
    recipe = quick()
    (link,) = links(recipe, digits, 1)
    link.steps = 8
    trainings(recipe, digits, [link], steps=8)[0].run()
    assert link.steps == 8
    assert accuracy(link) < 0.5


@pytest.mark.parametrize("share", [0, 1])
def test_the_daemon_may_ask_for_an_end_at_any_time(digits: Dataset, share: int) -> None:
    recipe = quick()
    ends = links(recipe, digits, 2)
    ends[share].stopping = True
    trainings(recipe, digits, ends)[share].run()
    assert ends[share].steps == 0
    assert len(ends[share].reports) == 1


def test_a_run_by_time_follows_the_clock(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY_S", 0.0)
    recipe = quick(warm_start=0.25)
    ends = links(recipe, digits, 2)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.01
        return now

    taken: list[tuple[int, Any]] = []
    send = Training._send_sparsely

    def noting(part: Training, number: int, positions: Any, elapsed_s: float) -> float:
        walk = part._plan.walk
        if number > walk.own_warm_steps:
            taken.append((walk.rank, positions))
        return send(part, number, positions, elapsed_s)

    monkeypatch.setattr(Training, "_send_sparsely", noting)
    samples = len(digits.train.labels)
    for share, link in enumerate(ends):
        now = 0.0
        plan = Plan(recipe, samples, RunPart(rank=share, world_size=2, seconds=20.0))
        Training(recipe, digits, plan, as_link(link), TrainingContext(clock=clock)).run()
        assert 20 <= now < 20.2
    first = round(recipe.learning_rate * 0.03 / recipe.quantum)
    assert ends[0].thresholds[0] == ends[1].thresholds[0] == first
    assert ends[0].thresholds[-1] == ends[1].thresholds[-1] == round(first / 8)
    assert ends[1].steps < 0.85 * ends[0].steps
    assert min(accuracy(link) for link in ends) > 0.8
    dealt = [(share, position % 2) for share, positions in taken for position in positions]
    assert set(dealt) == {(0, 0), (1, 1)}, "from the first mini-batch after the warm start on"


def test_time_that_passed_before_counts(digits: Dataset) -> None:
    recipe = quick()
    (link,) = links(recipe, digits, 1)
    plan = Plan(recipe, len(digits.train.labels), RunPart(rank=0, world_size=1, seconds=20.0))
    Training(recipe, digits, plan, as_link(link), TrainingContext(elapsed_s=20.0)).run()
    assert link.steps == 0


def test_a_divergence_is_named_with_what_to_try_and_nothing_is_sent(digits: Dataset) -> None:
    recipe = quick(learning_rate=100.0, tau=0.01, hidden=(64, 64, 64))
    (link,) = links(recipe, digits, 1)
    link.weights *= np.float32(1e20)
    (diverging,) = trainings(recipe, digits, [link])
    with pytest.raises(
        UsageError,
        match=r"diverged: the loss is (nan|inf) after 0 .+ learning_rate = 100 and tau = 0\.01: try",
    ) as caught:
        diverging.run()
    assert caught.value.exit_code is ExitCode.FAILED
    assert np.isfinite(link.residual).all()
