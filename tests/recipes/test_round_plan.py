"""Which samples which round uses, and at which point of the schedule it is: from its number alone."""

from __future__ import annotations

import numpy as np
import pytest

from p2psgd.recipes.recipe import Recipe, parse_recipe
from p2psgd.recipes.schedule import RoundPlan, RunPart

KEYS = {"name": "x", "data": "digits", "hidden": [], "batch": 10, "epochs": 4, "learning_rate": 1, "tau": 0.1}


def recipe(payload: str) -> Recipe:
    return parse_recipe({**KEYS, "run": {"mode": "ring", "payload": payload}}, where="recipe")


def plans(payload: str, world_size: int, *, steps: int | None = None, samples: int = 100) -> list[RoundPlan]:
    return [
        RoundPlan(recipe(payload), samples, RunPart(rank=rank, world_size=world_size, steps=steps))
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("payload", ["sparse", "dense"])
@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("steps", [None, 30])
def test_all_rounds_together_use_every_position_once(
    payload: str, world_size: int, steps: int | None
) -> None:
    parts = plans(payload, world_size, steps=steps)
    rounds, end = parts[0].rounds, parts[0].walk.positions
    assert rounds is not None
    assert end is not None
    used: list[int] = []
    for number in range(1, rounds + 1):
        positions = np.concatenate([part.positions(number) for part in parts])
        assert positions.min() == parts[0].first_position(number) == len(used)
        used += sorted(positions.tolist())
    left_out = end - len(used)
    assert used == list(range(len(used)))
    assert 0 <= left_out < world_size  # less than a sample for each in the last round
    assert not any(part.over(rounds, elapsed_s=1e9) for part in parts)
    assert all(part.over(rounds + 1, elapsed_s=0) for part in parts)


def test_in_a_sparse_ring_share_0_trains_alone_at_first() -> None:
    first, second = plans("sparse", 2)
    assert first.walk.warm_steps == 4  # a tenth of 400 samples
    assert [len(first.positions(number)) for number in (1, 4, 5)] == [10, 10, 10]
    assert [len(second.positions(number)) for number in (1, 4, 5)] == [0, 0, 10]
    assert first.warm(4)
    assert not first.warm(5)


def test_a_dense_round_uses_what_one_node_with_the_whole_batch_would() -> None:
    parts = plans("dense", 4, steps=9)
    one = RoundPlan(
        recipe("dense").model_copy(update={"batch": 40}), 100, RunPart(rank=0, world_size=1, steps=9)
    )
    for number in range(1, 10):
        together = np.concatenate([part.positions(number) for part in parts])
        assert sorted(together) == one.positions(number).tolist()
        assert parts[3].epoch(number, elapsed_s=0) == one.epoch(number, elapsed_s=0)


@pytest.mark.parametrize("payload", ["sparse", "dense"])
def test_by_steps_there_are_so_many_rounds_and_the_schedule_is_squeezed_into_them(payload: str) -> None:
    for part in plans(payload, 3, steps=50):
        assert part.rounds == 50
        assert part.epoch(1, elapsed_s=1e9) == 0
        assert part.epoch(50, elapsed_s=1e9) == pytest.approx(4, abs=0.1)
        assert part.epoch(51, elapsed_s=1e9) < 4


def test_by_time_the_warm_start_ends_with_the_round_in_which_its_time_is_over() -> None:
    first, second = (
        RoundPlan(recipe("sparse"), 100, RunPart(rank=rank, world_size=2, seconds=60.0)) for rank in range(2)
    )
    for part in (first, second):
        part.look_at_time(20, elapsed_s=5.9)
        assert part.warm(20)
        part.look_at_time(21, elapsed_s=6.0)
        assert not part.warm(21)
        part.look_at_time(30, elapsed_s=7.0)
        assert part.walk.warm_steps == 20  # settled once
        assert part.epoch(21, elapsed_s=30.0) == 2
        assert not part.over(10**6, elapsed_s=59.9)
        assert part.over(1, elapsed_s=60.0)
    together = [*first.positions(21), *second.positions(21)]
    assert sorted(together) == list(range(200, 220))
