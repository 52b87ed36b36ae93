"""Where owners make the changes, steps send gradients, and the optimizer gives the rate and the settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import Daemon, changes_of
from tests.torch.models import WEIGHTS, flat, make_model, take_gradient
from tests.torch.needed import nn, p2psgd_torch, torch

pytestmark = pytest.mark.long

optim = torch.optim


def sgd(model: Any, **options: Any) -> Any:
    return optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def attach(daemon: Daemon, model: Any, optimizer: Any, rule: str = "adagrad", **given: Any) -> Any:
    options = {"local_steps": 1, "mode": "owners", "rule": rule, **given}
    return p2psgd_torch.attach(model, optimizer, control=daemon.path, **options)


def gradient_of(model: Any) -> Any:
    trained = [each for each in model.parameters() if each.requires_grad and each.numel()]
    return np.concatenate([each.grad.float().numpy().reshape(-1) for each in trained])


def given(daemon: Daemon, link: Any) -> Any:
    """Return the sum of all gradients that this node has sent or keeps in its residual."""
    daemon.take_all()
    return changes_of(daemon.host.updates, WEIGHTS) + link.link.residual


@pytest.mark.parametrize(
    ("rule", "make", "word"),
    [
        ("adagrad", optim.SGD, "adagrad(epsilon=1e-10, initial=0.0)"),
        ("adagrad(initial=0.5)", optim.SGD, "adagrad(epsilon=1e-10, initial=0.5)"),
        (
            "adagrad",
            lambda its, lr: optim.Adagrad(its, lr, eps=1e-6, initial_accumulator_value=0.1),
            "adagrad(epsilon=1e-06, initial=0.1)",
        ),
        (
            "adamw",
            lambda its, lr: optim.AdamW(its, lr, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.2),
            "adamw(beta1=0.8, beta2=0.95, epsilon=1e-07, weight_decay=0.2)",
        ),
        ("adamw", optim.Adam, "adamw(beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.0)"),
        (
            "adamw(beta2=0.95)",
            lambda its, lr: optim.AdamW(its, lr, betas=(0.9, 0.95)),
            "adamw(beta1=0.9, beta2=0.95, epsilon=1e-08, weight_decay=0.01)",
        ),
    ],
)
def test_a_step_changes_nothing_here_and_sends_the_gradient_with_the_rate(
    daemon: Daemon, rule: str, make: Callable[..., Any], word: str
) -> None:
    model = make_model()
    optimizer = make(model.parameters(), lr=0.5)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before, expected = flat(model), np.zeros(WEIGHTS)
    with attach(daemon, model, optimizer, rule) as link:
        assert link.link.mode.rule.word == word
        for number in range(3):
            take_gradient(model, number)
            expected += gradient_of(model)
            optimizer.step()
            scheduler.step()
        torch.testing.assert_close(flat(model), before, rtol=0, atol=2**-20)
        np.testing.assert_allclose(given(daemon, link), expected, atol=1e-5)
        assert [each.rate for each in daemon.host.updates] == [0.5, 0.25, 0.125]
        assert link.steps == 3
    take_gradient(model, 3)
    optimizer.step()
    assert not torch.allclose(flat(model), before, rtol=0, atol=2**-20), "it is an ordinary one again"


def test_the_gradients_are_the_scripts_again_after_the_step(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with attach(daemon, model, optimizer):
        take_gradient(model, 0)
        gradients = [each.grad for each in model.parameters()]
        values = gradient_of(model)
        optimizer.step()
        assert all(each.grad is grad for each, grad in zip(model.parameters(), gradients, strict=True))
        np.testing.assert_array_equal(gradient_of(model), values)


def test_gradients_of_local_steps_add_up_and_go_at_the_rate_of_the_last(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    expected = np.zeros(WEIGHTS)
    with attach(daemon, model, optimizer, local_steps=3) as link:
        for number in range(3):
            assert not link.link.steps
            take_gradient(model, number)
            expected += gradient_of(model)
            optimizer.param_groups[0]["lr"] = 0.1 * (number + 1)
            optimizer.step()
            link.link.receive()  # which leaves what waits
        np.testing.assert_allclose(given(daemon, link), expected, atol=1e-5)
        assert {each.rate for each in daemon.host.updates} == {float(np.float32(0.3))}
        take_gradient(model, 3)
        expected += gradient_of(model)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.0  # of a step that is not made
        link.close()  # sends what is left
        daemon.take_all()
        assert (link.steps, daemon.host.updates[-1].rate) == (4, float(np.float32(0.3)))


def test_at_rate_0_the_gradient_is_sent_and_moves_nothing(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model, lr=0.0)  # as in the first step of many a warm-up
    with attach(daemon, model, optimizer):
        take_gradient(model, 0)
        optimizer.step()
        daemon.take_all()
        assert 0 < daemon.host.updates[-1].rate < 1e-20


def test_the_threshold_does_not_depend_on_the_rate(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with attach(daemon, model, optimizer, tau=0.01):
        for rate in (0.1, 0.001):
            optimizer.param_groups[0]["lr"] = rate
            take_gradient(model, 0)
            optimizer.step()
        daemon.take_all()
    assert {each.magnitude for each in daemon.host.updates} == {math.ceil(0.01 * 2**20)}


def test_gradients_of_bfloat16_are_sent_in_float32(daemon: Daemon) -> None:
    model = nn.Linear(6, 6).to(torch.bfloat16)
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    with attach(daemon, model, optimizer, "adamw", density=0.1) as link:
        model(torch.ones(8, 6, dtype=torch.bfloat16)).square().mean().backward()
        expected = gradient_of(model)
        optimizer.step()
        daemon.take_all()
        sent = changes_of(daemon.host.updates, len(expected)) + link.link.residual
        np.testing.assert_allclose(sent, expected, atol=1e-6)
        assert model.weight.dtype == torch.bfloat16


def groups(model: Any, **second: Any) -> list[dict[str, Any]]:
    first, *others = (each for each in model.parameters() if each.requires_grad)
    return [{"params": [first]}, {"params": others, **second}]


REFUSED: list[tuple[str, Callable[[Any], Any], str]] = [
    ("adagrad", lambda its: optim.AdamW(its.parameters()), "AdamW is another method: take torch.optim.SGD"),
    ("adamw", lambda its: optim.RMSprop(its.parameters()), "RMSprop is another method"),
    ("adagrad", lambda its: sgd(its, momentum=0.9), "momentum=0.9 of the SGD would have no effect"),
    ("adamw", lambda its: sgd(its, weight_decay=0.1), "weight_decay=0.1 of the SGD would have no effect"),
    ("adamw", lambda its: sgd(its, maximize=True), "maximize=True of the SGD"),
    ("adamw", lambda its: optim.AdamW(its.parameters(), amsgrad=True), "amsgrad=True of the AdamW"),
    ("adamw", lambda its: optim.Adam(its.parameters(), weight_decay=0.1), "weight_decay=0.1 of the Adam"),
    ("adagrad", lambda its: optim.Adagrad(its.parameters(), lr_decay=0.1), "lr_decay=0.1 of the Adagrad"),
    ("adamw", lambda its: optim.AdamW(its.parameters(), eps=2.0), "owners do not take: rule adamw: epsilon"),
    (
        "adamw(beta2=0.95)",
        lambda its: optim.AdamW(its.parameters()),
        "beta2=0.95.*and the AdamW is .*beta2=0.999.*: give the rule by its name alone",
    ),
    ("adagrad", lambda its: optim.SGD(groups(its, lr=0.01), lr=0.1), "groups have 0.01 and 0.1"),
    (
        "adamw",
        lambda its: optim.AdamW(groups(its, weight_decay=0.0)),
        "the same settings for all weights, and the optimizer's groups differ",
    ),
    ("adagrad", lambda its: [optim.SGD([each], lr=0.1) for each in its.parameters()], "give attach one"),
]


@pytest.mark.parametrize(("rule", "make", "words"), REFUSED)
def test_what_would_have_no_effect_or_contradicts_is_refused(
    daemon: Daemon, rule: str, make: Callable[[Any], Any], words: str
) -> None:
    model = make_model()
    with pytest.raises(TrainerError, match=words):
        attach(daemon, model, make(model), rule)
    assert not daemon.host.attached


@pytest.mark.parametrize("name", ["own_residual", "run_horizon"])
def test_what_means_nothing_for_gradients_is_refused_if_asked_for(daemon: Daemon, name: str) -> None:
    model = make_model()
    with pytest.raises(TrainerError, match=f"{name}=True means nothing where owners make the changes"):
        attach(daemon, model, sgd(model), "adagrad", **{name: True})
    with attach(daemon, model, sgd(model), "adagrad", **{name: False}) as link:
        assert not link._horizons


def refuses(model: Any, optimizer: Any, words: str) -> None:
    take_gradient(model, 0)
    with pytest.raises(TrainerError, match=words):
        optimizer.step()


def test_what_changes_later_is_refused(daemon: Daemon) -> None:
    model = make_model()
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    with attach(daemon, model, optimizer, "adamw") as link:
        optimizer.param_groups[0]["betas"] = (0.85, 0.999)
        refuses(model, optimizer, "settings of the optimizer have changed.*cycle_momentum=False")
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
        with torch.no_grad():
            model.scale += 1
        before = link.link.weights.copy()
        refuses(model, optimizer, "the script has changed parameters in place")
        np.testing.assert_array_equal(flat(model), before)
        with pytest.raises(TrainerError, match=r"call step\(\) without one"):
            optimizer.step(lambda: take_gradient(model, 0))
        take_gradient(model, 0)
        model.first.bias.grad.fill_(torch.nan)
        with pytest.raises(TrainerError, match=r"the gradient of 'first.bias' is NaN or infinite"):
            optimizer.step()
        assert link.steps == 0
        take_gradient(model, 1)
        expected = gradient_of(model)
        optimizer.step()
        np.testing.assert_allclose(given(daemon, link), expected, atol=1e-5)


def test_a_script_that_is_started_again_goes_on_with_rate_and_residual(daemon: Daemon) -> None:
    models = [make_model(), make_model()]
    expected = np.zeros(WEIGHTS)
    for number, model in enumerate(models):
        optimizer = optim.Adagrad(model.parameters(), lr=0.5)
        scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        with attach(daemon, model, optimizer, keep=[scheduler]) as link:
            assert link.steps == number
            take_gradient(model, number)
            expected += gradient_of(model)
            optimizer.step()
            scheduler.step()
            np.testing.assert_allclose(given(daemon, link), expected, atol=1e-5)
    assert [each.rate for each in daemon.host.updates] == [0.5, 0.25]
