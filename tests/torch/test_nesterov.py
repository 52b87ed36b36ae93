"""The rule nesterov, in rounds: of each step's gradient, or of what local steps have changed (DiLoCo)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.core.owners.rules import make_rule
from p2psgd.wire.ring_messages import ContributionMade
from p2psgd.wire.rule import parse_rule
from tests.ipc.daemons import Daemon, changes_of
from tests.ipc.rings import Ring
from tests.torch.models import WEIGHTS, flat, make_model, take_gradient
from tests.torch.needed import nn, p2psgd_torch, torch
from tests.torch.test_in_rings import open_to, trained

pytestmark = pytest.mark.long

optim = torch.optim


class SilentOwners(Ring):
    """The rounds of one node whose owners change nothing. `given`: what it has contributed to each."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__([daemon])
        self.given: list[ContributionMade] = []

    def complete(self) -> None:
        (daemon,) = self.daemons
        share = daemon.host.shares.pop(0)
        assert isinstance(share, ContributionMade)
        self.given.append(share)
        self.open_for(daemon, contributors=1)


def attach(owners: SilentOwners, model: Any, optimizer: Any, **given: Any) -> Any:
    options = {"mode": "owners", "rounds": True, "rule": "nesterov", "control": owners.daemons[0].path}
    with ThreadPoolExecutor() as pool:
        attached = pool.submit(p2psgd_torch.attach, model, optimizer, **{**options, **given})
        open_to(owners)
        return attached.result(30)


def refuses(words: str, optimizer: Callable[[Any], Any], **given: Any) -> None:
    model = make_model()
    options = {"mode": "owners", "rounds": True, "rule": "nesterov", **given}
    with pytest.raises(TrainerError, match=words):
        p2psgd_torch.attach(model, optimizer(model.parameters()), **options)


def sgd(parameters: Any, **options: Any) -> Any:
    return optim.SGD(parameters, **{"lr": 0.5, "momentum": 0.75, "nesterov": True, **options})


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_rule_is_pytorchs_sgd_on_the_mean_of_all_nodes(nodes: int) -> None:
    rule = make_rule(parse_rule("nesterov(momentum=0.75)"))
    assert rule is not None
    rule.state.move((0, WEIGHTS))
    generator = np.random.default_rng(1)
    weights = generator.standard_normal(WEIGHTS).astype(np.float32)
    parameter = nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = sgd([parameter])
    for _ in range(6):
        gradients = generator.standard_normal((nodes, WEIGHTS)).astype(np.float32)
        for gradient in gradients:
            rule.contribute(np.arange(WEIGHTS), gradient, 0.5)
        changes = rule.step(weights, nodes)
        assert changes is not None
        weights += changes
        parameter.grad = torch.from_numpy(gradients.mean(0))
        optimizer.step()
        np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "rule", "momentum"),
    [
        (sgd, "nesterov", 0.75),
        (sgd, "nesterov(momentum=0.75)", 0.75),
        (lambda its: optim.SGD(its, lr=0.5), "nesterov", 0.9),
        (lambda its: optim.SGD(its, lr=0.5), "nesterov(momentum=0)", 0.0),
    ],
)
def test_a_step_sends_the_gradient_with_rate_and_momentum_of_the_scripts_sgd(
    daemon: Daemon, make: Callable[[Any], Any], rule: str, momentum: float
) -> None:
    model, owners = make_model(), SilentOwners(daemon)
    optimizer = make(model.parameters())
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before, expected = flat(model), np.zeros(WEIGHTS)
    with attach(owners, model, optimizer, rule=rule) as link:
        assert link.link.mode.rule.word == f"nesterov(momentum={momentum})"
        for number in range(3):
            take_gradient(model, number)
            expected += np.concatenate([each.grad.numpy().reshape(-1) for each in trained(model)])
            optimizer.step()
            scheduler.step()
            torch.testing.assert_close(flat(model), before, rtol=0, atol=2**-20)
        updates = [update for share in owners.given for update in share.updates]
        np.testing.assert_allclose(changes_of(updates, WEIGHTS) + link.link.residual, expected, atol=1e-5)
        assert [{update.rate for update in share.updates} for share in owners.given] == [
            {0.5},
            {0.25},
            {0.125},
        ]


EPSILON = 1e-3  # so that gradients which are zero but for rounding move nothing


def adamw(model: Any) -> list[Any]:
    return [optim.AdamW(model.parameters(), lr=0.01, eps=EPSILON)]


def two(model: Any) -> list[Any]:
    first, *others = (each for each in model.parameters() if each.requires_grad and each.numel())
    return [optim.Adam([first], lr=0.01, eps=EPSILON), optim.SGD(others, lr=0.05, momentum=0.9)]


@pytest.mark.parametrize("make", [adamw, two])
@pytest.mark.parametrize(
    ("given", "rate"),
    [({}, 0.7), ({"outer_rate": 0.25}, 0.25), ({"payload": "ternary"}, 0.7)],  # whose small tensors are exact
)
def test_what_local_steps_have_changed_is_the_gradient_of_the_outer_step(
    daemon: Daemon, make: Callable[[Any], list[Any]], given: dict[str, Any], rate: float
) -> None:
    model, plain, owners = make_model(), make_model(), SilentOwners(daemon)
    optimizers, plain_optimizers = make(model), make(plain)
    begin, expected = flat(plain), np.zeros(WEIGHTS)
    with attach(owners, model, optimizers, local_steps=3, **given) as link:
        for number in range(6):
            for its, its_optimizers in ((model, optimizers), (plain, plain_optimizers)):
                take_gradient(its, number)
                for optimizer in its_optimizers:
                    optimizer.step()
            if number % 3 < 2:
                torch.testing.assert_close(flat(model), flat(plain), rtol=0, atol=1e-5)
                continue
            # Owners change nothing here: each round begins at the same weights, with the optimizers' states.
            torch.testing.assert_close(flat(model), begin, rtol=0, atol=2**-20)
            expected += (begin - flat(plain)).numpy()
            updates = [update for share in owners.given for update in share.updates]
            sent = changes_of(updates, WEIGHTS)
            np.testing.assert_allclose(sent + link.link.residual, expected, rtol=0, atol=1e-4)
            assert {update.rate for update in updates} == {float(np.float32(rate))}
            assert (len(owners.given), link.steps) == ((number + 1) // 3, number + 1)
            nn.utils.vector_to_parameters(begin.clone(), trained(plain))


def test_a_skipped_step_is_one_of_the_local_ones(daemon: Daemon) -> None:
    model, owners = make_model(), SilentOwners(daemon)
    (optimizer,) = adamw(model)
    with attach(owners, model, optimizer, local_steps=2) as link:
        take_gradient(model, 0)
        optimizer.step()
        link.skip()
        assert (len(owners.given), link.steps) == (1, 2)
        assert owners.given[0].updates
        link.skip()
        link.skip()
        assert (len(owners.given), link.steps) == (2, 4)


@pytest.mark.parametrize("given", [{}, {"local_steps": 5}])
def test_the_rule_is_refused_without_rounds(given: dict[str, int]) -> None:
    refuses("rule nesterov is for rounds, .*: train in rounds", sgd, rounds=False, **given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            optim.AdamW,
            r"AdamW is another method: take torch\.optim\.SGD, or give local_steps above 1, .*DiLoCo",
        ),
        (
            lambda its: sgd(its, nesterov=False),
            "momentum=0.75 of the SGD is another method than the rule nesterov: make it with nesterov=True",
        ),
        (lambda its: sgd(its, nesterov=False, dampening=0.1), "momentum=0.75 of the SGD is another method"),
        (lambda its: sgd(its, weight_decay=0.1), "weight_decay=0.1 of the SGD would have no effect"),
        (lambda its: sgd(its, maximize=True), "maximize=True of the SGD would have no effect"),
        (lambda its: sgd(its, momentum=1.5), "owners do not take: rule nesterov: momentum=1.5 is refused"),
    ],
)
def test_an_optimizer_of_another_method_is_refused(make: Callable[[Any], Any], words: str) -> None:
    refuses(words, make)


def test_another_momentum_than_that_of_the_optimizer_is_refused() -> None:
    refuses(
        "the rule is nesterov.momentum=0.9., and the SGD is nesterov.momentum=0.75.: give the rule by its",
        sgd,
        rule="nesterov(momentum=0.9)",
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"outer_rate": 0.5},
            "outer_rate=0.5 is of the step that owners make of several local steps: give rule",
        ),
        ({"outer_rate": 0.5, "local_steps": 1}, "outer_rate=0.5 is of the step"),
        ({"outer_rate": 0.5, "local_steps": 5, "rule": "sum"}, "outer_rate=0.5 is of the step"),
        (
            {"outer_rate": 0.0, "local_steps": 5},
            "outer_rate 0.0 is refused: give a number above 0, at most 100",
        ),
        ({"outer_rate": "1", "local_steps": 5}, "outer_rate '1' is refused"),
        ({"own_residual": True, "local_steps": 5}, "own_residual=True means nothing where owners make the"),
    ],
)
def test_options_that_mean_nothing_there_are_refused(given: dict[str, Any], words: str) -> None:
    refuses(words, sgd, **given)


def test_a_momentum_that_changes_later_is_refused(daemon: Daemon) -> None:
    model, owners = make_model(), SilentOwners(daemon)
    optimizer = sgd(model.parameters())
    with attach(owners, model, optimizer):
        optimizer.param_groups[0]["momentum"] = 0.5
        take_gradient(model, 0)
        with pytest.raises(TrainerError, match="settings of the optimizer have changed"):
            optimizer.step()
        assert not owners.given
