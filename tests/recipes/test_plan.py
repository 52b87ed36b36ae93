"""How long a rank's part is: by epochs, by mini-batches, by time."""

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.recipes.recipe import Recipe, parse_recipe
from p2psgd.recipes.schedule import Plan, RunPart

RECIPE: Recipe = parse_recipe(
    {"name": "x", "data": "digits", "hidden": [], "batch": 10, "epochs": 4, "learning_rate": 1, "tau": 0.1},
    where="recipe",
)


def plan(rank: int, world_size: int, *, steps: int | None = None, seconds: float | None = None) -> Plan:
    return Plan(RECIPE, 100, RunPart(rank=rank, world_size=world_size, steps=steps, seconds=seconds))


def test_the_total_of_samples_does_not_depend_on_the_number_of_nodes() -> None:
    for world_size in (1, 2, 4, 7):
        total = 0
        for rank in range(world_size):
            one = plan(rank, world_size)
            assert one.steps is not None
            total += one.walk.samples_before(one.steps)
        assert total == 4 * 100


def test_by_epochs_all_follows_from_the_mini_batches() -> None:
    one = plan(1, 2)
    assert one.walk.warm_steps == 4  # a tenth of 400 samples
    assert not one.warm_start_over(3, elapsed_s=1e9)
    assert one.warm_start_over(4, elapsed_s=0)
    assert one.steps == 18
    assert not one.over(steps=17, elapsed_s=1e9)
    assert one.over(steps=18, elapsed_s=0)
    assert one.epoch(250, elapsed_s=0) == 2.5


def test_by_steps_every_node_takes_so_many_mini_batches_and_the_schedule_is_squeezed_into_them() -> None:
    for rank in range(2):
        one = plan(rank, 2, steps=50)
        assert one.steps == 50
        assert one.over(steps=50, elapsed_s=0)
        assert one.walk.warm_steps == 5
    first, second = (plan(rank, 2, steps=50) for rank in range(2))
    assert first.epoch(0, elapsed_s=0) == 0
    assert second.epoch(int(second.walk.at(49)[-1]), elapsed_s=0) == pytest.approx(4, abs=0.01)


def test_by_time_the_warm_start_and_the_schedule_follow_the_clock() -> None:
    first, second = plan(0, 2, seconds=60), plan(1, 2, seconds=60)
    assert first.walk.at(30).tolist() == list(range(300, 310))
    for one in (first, second):
        assert not one.warm_start_over(10**6, elapsed_s=5.9)
        assert one.warm_start_over(0, elapsed_s=6)
        one.settle_warm_start(31)
        one.settle_warm_start(99)  # settled once
        assert one.walk.warm_steps == 31
        assert one.epoch(0, elapsed_s=30) == 2
        assert 3.999 < one.epoch(0, elapsed_s=90) < 4
        assert one.over(steps=0, elapsed_s=60)
        assert not one.over(steps=10**6, elapsed_s=59)
    assert first.walk.at(31)[:2].tolist() == [310, 312]
    assert second.walk.at(0)[:2].tolist() == [311, 313]


@pytest.mark.parametrize(
    ("rank", "steps", "seconds", "words"),
    [
        ((2, 2), None, None, "rank 2/2 does not exist: give i/n with i from 0 to n - 1"),
        ((-1, 2), None, None, "rank -1/2 does not exist"),
        ((0, 0), None, None, "rank 0/0 does not exist"),
        ((0, 1), 0, None, "steps = 0 is refused"),
        ((0, 1), 1, 1.0, "give steps or seconds, not both"),
        ((0, 1), None, 0.0, "seconds = 0 is refused: it must be above 0"),
        ((0, 1), None, float("nan"), "seconds = nan is refused"),
        ((0, 1), None, float("inf"), "seconds = inf is refused"),
    ],
)
def test_numbers_out_of_range_are_refused(
    rank: tuple[int, int], steps: int | None, seconds: float | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        RunPart(rank=rank[0], world_size=rank[1], steps=steps, seconds=seconds)
