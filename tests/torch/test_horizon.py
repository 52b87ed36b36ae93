"""Betas and momentum reach back as many steps of the run as the user asked for, and only during a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ipc.daemons import Daemon
from tests.torch.models import make_model, take_gradient
from tests.torch.needed import p2psgd_torch, torch

pytestmark = pytest.mark.long


def test_betas_are_raised_to_the_power_during_the_step_and_given_back() -> None:
    optimizer = torch.optim.AdamW(make_model().parameters(), lr=1e-2, betas=(0.9, 0.99))
    shortened = p2psgd_torch.horizon.Horizon(optimizer)
    assert shortened.applies
    shortened.shorten(4.0)
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.6561, 0.96059601))
    shortened.shorten(2.0)  # of what the user gave, not of what is there
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.81, 0.9801))
    shortened.restore()
    shortened.restore()
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.99)


def test_a_gradient_moves_the_weights_of_sgd_as_far_in_all_as_it_would_without() -> None:
    def moved(ratio: float) -> float:
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        shortened = p2psgd_torch.horizon.Horizon(optimizer)
        for number in range(400):
            weight.grad = torch.ones(1) if number == 0 else torch.zeros(1)
            shortened.shorten(ratio)
            optimizer.step()
            shortened.restore()
        return float(weight.detach())

    assert moved(1.0) == pytest.approx(-1.0)
    assert moved(4.0) == pytest.approx(-1.0)


def test_a_rate_that_a_schedule_sets_is_the_users() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=20)
    plain = torch.optim.SGD(make_model().parameters(), lr=0.1, momentum=0.9)
    plain_schedule = torch.optim.lr_scheduler.OneCycleLR(plain, max_lr=1.0, total_steps=20)
    shortened = p2psgd_torch.horizon.Horizon(optimizer)
    for number in range(20):
        take_gradient(model, number)
        shortened.shorten(3.0)
        optimizer.step()
        shortened.restore()
        plain.step()
        if number < 19:
            schedule.step()
            plain_schedule.step()
        assert optimizer.state_dict()["param_groups"] == plain.state_dict()["param_groups"]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_who_has_no_moving_average_is_left_alone(optimizer: Any) -> None:
    assert not p2psgd_torch.horizon.Horizon(optimizer(make_model().parameters(), lr=0.1)).applies


def test_the_pace_is_that_of_the_last_hundred_own_steps() -> None:
    measured = p2psgd_torch.horizon.Pace(4)
    assert (measured.ratio, measured.measured) == (4, False)
    for own in range(1, 400):
        measured.note(own, {2: 3 * own, 3: own // 2})
    assert measured.ratio == pytest.approx(4.5, rel=0.01)
    for own in range(400, 520):  # node 2 has ended
        measured.note(own, {2: 1200, 3: own // 2})
    assert measured.ratio == pytest.approx(1.5, rel=0.05)


def test_one_sentence_says_what_becomes_of_the_averages() -> None:
    optimizer = torch.optim.AdamW(make_model().parameters(), betas=(0.9, 0.99))
    assert p2psgd_torch.horizon.Horizon(optimizer).describe(4.0) == (
        "the run makes 4.0 steps for each of this node, so betas (0.9, 0.99) act as (0.656, 0.961) here;"
        " attach(run_horizon=False) leaves them as they are"
    )
    other = p2psgd_torch.horizon.Horizon(torch.optim.SGD(make_model().parameters(), lr=0.1, momentum=0.9))
    assert "momentum 0.9 acts as 0.81 here" in other.describe(2.0)


def test_what_peers_did_while_this_node_was_away_does_not_count() -> None:
    measured = p2psgd_torch.horizon.Pace(4)
    for own in range(400):
        measured.note(own, {2: 3 * own + (100_000 if own > 200 else 0)})
        assert measured.ratio == pytest.approx(4)


def test_a_node_alone_keeps_what_was_given() -> None:
    measured = p2psgd_torch.horizon.Pace(1)
    for own in range(200):
        measured.note(own, {})
    assert measured.ratio == 1


def test_pauses_of_this_node_again_and_again_do_not_count_either() -> None:
    measured = p2psgd_torch.horizon.Pace(4)
    peers = 0
    for own in range(1, 1000):
        peers += 3 + (300 if own % 47 == 0 else 0)  # it evaluates
        measured.note(own, {2: peers // 3, 3: peers // 3, 4: peers // 3})
        assert 1 <= measured.ratio < 5


def test_a_node_that_is_very_slow_gets_no_more_than_four_for_each_node() -> None:
    measured = p2psgd_torch.horizon.Pace(2)
    for own in range(200):
        measured.note(own, {2: 1000 * own})
    assert measured.ratio == 8


@pytest.mark.parametrize("rate", [1, 0.1, np.float32(0.1), "tensor"])
def test_a_rate_of_any_kind_is_scaled_with_the_momentum(rate: Any) -> None:
    rate = torch.tensor(0.1) if rate == "tensor" else rate
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=rate, momentum=0.9)
    shortened = p2psgd_torch.horizon.Horizon(optimizer)
    shortened.shorten(4.0)
    group = optimizer.param_groups[0]
    assert float(group["lr"]) / (1 - group["momentum"]) == pytest.approx(float(rate) / 0.1)
    shortened.restore()
    assert group["lr"] is rate


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.RMSprop(weights, momentum=0.9),
        lambda weights: type("Own", (torch.optim.SGD,), {})(weights, lr=0.1, momentum=0.9),
        torch.optim.RAdam,
        lambda weights: type("Adan", (torch.optim.SGD,), {"defaults": {}})(
            [{"params": [*weights], "betas": (0.02, 0.08)}]
        ),
    ],
)
def test_averages_of_unknown_size_are_left_alone(make: Any) -> None:
    assert not p2psgd_torch.horizon.Horizon(make(make_model().parameters())).applies


def test_what_was_set_anew_after_a_step_that_raised_is_kept() -> None:
    optimizer = torch.optim.SGD(make_model().parameters(), lr=0.1, momentum=0.9)
    shortened = p2psgd_torch.horizon.Horizon(optimizer)
    shortened.shorten(4.0)
    optimizer.param_groups[0]["lr"] = 0.01
    shortened.restore()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.01, 0.9)


def test_during_a_step_the_averages_are_short_and_after_it_the_users(daemon: Daemon) -> None:
    seen = []
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def fails() -> Any:
        raise RuntimeError("out of memory")

    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        assert link.world_size == 4
        hook = optimizer.register_step_pre_hook(
            lambda each, *_: seen.append(each.param_groups[0]["momentum"])
        )
        take_gradient(model, 0)
        optimizer.step()
        assert optimizer.param_groups[0]["momentum"] == 0.9
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step(fails)
        assert optimizer.state_dict()["param_groups"][0]["momentum"] == 0.9
    optimizer.step()
    hook.remove()
    assert seen == [pytest.approx(0.9**4), pytest.approx(0.9**4), 0.9]


@pytest.mark.parametrize("together", [15, 30, 45])
def test_a_peer_whose_sends_hold_many_steps_counts_as_much(together: int) -> None:
    measured = p2psgd_torch.horizon.Pace(1)
    for own in range(1, 2000):
        measured.note(own, {2: own // together * together, 3: own})
    assert measured.ratio == pytest.approx(3, rel=0.15)
