"""What the ranks of a group go on from after a restart: each from its own state, all from one place.

Each rank is a thread, with a link that holds its state, and a group that gathers as that of torchrun does.
The state of a rank alone is tested with real daemons (test_epochs.py, test_model_link.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from p2psgd.ipc.part import Part
from tests import DEADLINE_S
from tests.torch.needed import nn, p2psgd_torch, torch

pytestmark = pytest.mark.long

Kept = p2psgd_torch.checkpoint.Kept
RATES = (0.1, 0.02)  # of the two ranks


class Average:
    """Something of a rank's own that it keeps, as an average of its weights is."""

    def __init__(self, value: float) -> None:
        self.value = value

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class Rank:
    """A script on one rank, with an optimizer of its own."""

    def __init__(self, number: int, *, rate: float, groups: int = 1, average: float = 0.0) -> None:
        torch.manual_seed(number)
        self.number, self.model = number, nn.Linear(2, 2)
        parameters = [{"params": [each]} for each in self.model.parameters()]
        parameters = parameters if groups == 2 else [{"params": list(self.model.parameters())}]
        self.optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=rate / 10)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, gamma=0.5)
        self.average = Average(average)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        self.link = SimpleNamespace(steps=0, restored=None)
        self.missed = 0
        self.kept: Any = None

    @property
    def settings(self) -> list[tuple[float, float]]:
        return [(group["lr"], group["weight_decay"]) for group in self.optimizer.param_groups]

    def step(self, count: int) -> None:
        for _ in range(count):
            for parameter in self.model.parameters():
                parameter.grad = torch.ones_like(parameter)
            self.optimizer.step()
            self.scheduler.step()
            self.link.steps += 1

    def begin(self, group: Any) -> None:
        """Restore what the link holds, as `attach` with these objects in `keep` does."""
        steps = SimpleNamespace(rates=[], restore=lambda rates: None)
        self.kept = Kept(self.link, self.model, [self.optimizer], steps, group)
        self.kept.script_steps = lambda: self.link.steps + self.missed
        self.kept.restore()
        self.kept.add([self.scheduler, self.average, self.scaler])

    def state(self) -> dict[str, Any]:
        """Return what this rank keeps now, as a daemon gives it back."""
        state = self.kept.make()
        return {name: bytes(each) if isinstance(each, memoryview) else each for name, each in state.items()}


def begin_together(ranks: Sequence[Rank]) -> None:
    barrier = threading.Barrier(len(ranks), timeout=DEADLINE_S)
    values: list[Any] = [None] * len(ranks)

    def gather(number: int) -> Callable[[Any], list[Any]]:
        def call(value: Any) -> list[Any]:
            values[number] = value
            barrier.wait()
            everywhere = [*values]
            barrier.wait()
            return everywhere

        return call

    def begin(rank: Rank) -> None:
        group = SimpleNamespace(part=Part(rank.number, len(ranks)), gather=gather(rank.number))
        try:
            rank.begin(group)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(ranks)) as pool:
        for done in [pool.submit(begin, rank) for rank in ranks]:
            done.result()


def make_ranks(rates: Sequence[float] = RATES, *, groups: Sequence[int] = (1, 1)) -> list[Rank]:
    return [
        Rank(number, rate=rate, groups=each)
        for number, (rate, each) in enumerate(zip(rates, groups, strict=True))
    ]


def lives(
    rates: Sequence[float] = RATES,
    *,
    kept_at: Sequence[int | None] = (3, 5),
    groups: Sequence[int] = (1, 1),
    missed: Sequence[int] = (0, 0),
) -> list[Rank]:
    """Return ranks whose state was kept at these steps, and which were started again after the sixth.

    `missed`: how many of the script's steps the daemon of each had not counted, before and afterwards.
    """
    before, after = make_ranks(rates, groups=groups), make_ranks(rates, groups=groups)
    begin_together(before)
    for old, new, steps, lacks in zip(before, after, kept_at, missed, strict=True):
        old.step(steps or 0)
        old.missed = new.missed = lacks
        old.link.steps -= lacks
        old.average.value = 10.0 + old.number
        old.scaler.load_state_dict(old.scaler.state_dict() | {"scale": 2.0 ** (steps or 0)})
        new.link.restored = None if steps is None else old.state()
        new.link.steps = 6 - lacks
    begin_together(after)
    return after


@pytest.mark.parametrize("groups", [(1, 1), (1, 2)])
def test_each_rank_goes_on_with_its_own_settings_and_kept_objects(groups: tuple[int, int]) -> None:
    ranks = lives(groups=groups)
    for rank, rate in zip(ranks, RATES, strict=True):
        assert rank.settings == [(rate / 2, rate / 10)] * len(rank.optimizer.param_groups)
        assert rank.average.value == 10.0 + rank.number


def test_all_schedulers_go_on_from_the_place_of_the_rank_that_came_furthest_and_scalers_from_its_scale() -> (
    None
):
    ranks = lives()
    assert [rank.scheduler.last_epoch for rank in ranks] == [5, 5]
    assert [rank.kept.place.steps for rank in ranks] == [5, 5]
    assert [rank.scaler.get_scale() for rank in ranks] == [32.0, 32.0]


def test_a_rank_of_which_nothing_was_kept_takes_settings_of_ranks_whose_optimizers_are_made_alike() -> None:
    ranks = lives((0.1, 0.1), kept_at=(5, None))
    assert [rank.settings for rank in ranks] == [[(0.05, 0.01)]] * 2
    assert [rank.scheduler.last_epoch for rank in ranks] == [5, 5]
    assert [rank.average.value for rank in ranks] == [10.0, 0.0], "an average is of one rank's weights"


def test_a_rank_of_which_nothing_was_kept_takes_no_settings_of_ranks_that_have_others() -> None:
    for groups in ((1, 1), (2, 1)):
        ranks = lives(kept_at=(5, None), groups=groups)
        assert ranks[1].settings == [(0.01, 0.002)]
        assert ranks[1].scheduler.last_epoch == 5


@pytest.mark.parametrize("missed", [(0, 4), (4, 0), (1, 3)])
def test_all_ranks_are_at_one_place_though_their_daemons_have_counted_other_numbers_of_rounds(
    missed: tuple[int, int],
) -> None:
    ranks = lives(missed=missed)
    places = [rank.kept.place for rank in ranks]
    assert [(place.steps, place.lost) for place in places] == [(5, 0)] * 2
    assert [rank.scheduler.last_epoch for rank in ranks] == [5, 5]


def test_a_part_of_which_alone_nothing_was_kept_says_that_it_begins_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "nothing was kept of this rank's script, which trains part 1, though of others it was"
    lives()
    assert words not in capsys.readouterr().err
    lives(kept_at=(5, None))
    assert capsys.readouterr().err.count(words) == 1
