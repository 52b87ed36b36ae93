"""What p2psgd cannot train is refused with a sentence that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import Daemon
from tests.torch.models import Model, make_model, take_gradient
from tests.torch.needed import nn, p2psgd_torch, torch

pytestmark = pytest.mark.long

Change = Callable[[Any], Any]


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def double(model: Any) -> Any:
    model.first.double()
    return sgd(model)


def foreign(model: Any) -> Any:
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3, 2))], lr=0.1)


def part(model: Any) -> Any:
    return torch.optim.SGD(model.first.parameters(), lr=0.1)


def frozen(model: Any) -> Any:
    optimizer = sgd(model)
    model.requires_grad_(False)
    return optimizer


def elsewhere(model: Any) -> Any:
    model.last.to("meta")
    return sgd(model)


def twins(model: Any) -> Any:
    model.last.weight = nn.Parameter(model.first.weight.detach())
    return sgd(model)


def overlapping(model: Any) -> Any:
    model.first.bias = nn.Parameter(model.norm.weight.detach()[3:])
    return sgd(model)


def watched(model: Any) -> Any:
    model.norm.register_buffer("before", model.norm.weight.detach()[2:4])
    return sgd(model)


def abstract(model: Any) -> Any:
    return sgd(model.to("meta"))


def lazy(model: Any) -> Any:
    model.more = nn.LazyLinear(3)
    return sgd(model)


def scripted(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model.first = torch.jit.script(model.first)
    return sgd(model)


def lbfgs(model: Any) -> Any:
    return torch.optim.LBFGS(model.parameters())


UNFIT: list[tuple[Change, str]] = [
    (double, r"'first.weight' is float64, and p2psgd trains float32, bfloat16 and float16: call model"),
    (foreign, r"parameter 9 of group 0 of the SGD, of shape \(3, 2\), is none of the model's"),
    (part, "'scale' requires a gradient and is in no group of the optimizer: add it, or freeze it"),
    (frozen, "the model has no parameter that requires a gradient"),
    (elsewhere, "'last.weight' is on meta and 'scale' on cpu"),
    (twins, "'first.weight' and 'last.weight' of the model have memory in common"),
    (overlapping, "'norm.weight' and 'first.bias' of the model have memory in common"),
    (watched, r"'norm.weight' and 'norm.before' of the model have .* make a buffer a clone\(\)"),
    (abstract, "the model is on meta"),
    (lazy, "'more.weight' has no shape yet: run the model once before"),
    (scripted, "the model is scripted or traced by torch.jit"),
    (lbfgs, "LBFGS compares gradients"),
]


@pytest.mark.parametrize(("make", "words"), UNFIT, ids=[make.__name__ for make, _ in UNFIT])
def test_a_model_or_an_optimizer_that_cannot_be_trained_is_refused_before_attaching(
    tmp_path: Path, make: Change, words: str
) -> None:
    model = make_model()
    with pytest.raises(TrainerError, match=words):
        p2psgd_torch.attach(model, make(model), control=tmp_path, timeout_s=0)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    model = make_model()
    where: dict[str, Any] = {"control": tmp_path, "timeout_s": 0}
    with pytest.raises(TrainerError, match=r"takes a torch.nn.Module and .*; it was given SGD and Model"):
        p2psgd_torch.attach(sgd(model), model, **where)
    with pytest.raises(TrainerError, match="give one of them"):
        p2psgd_torch.attach(model, sgd(model), density=0.1, tau=1.0, **where)
    for density in (0, 0.3, "much", float("nan")):
        with pytest.raises(TrainerError, match=r"density .* is refused: .* at most 0.25"):
            p2psgd_torch.attach(model, sgd(model), density=density, **where)
    with pytest.raises(TrainerError, match=r"keep holds a float, which has no state_dict\(\)"):
        p2psgd_torch.attach(model, sgd(model), keep=[0.1], **where)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(TrainerError, match=r"keep is a list, such as keep=\[scheduler\]; .* a GradScaler"):
        p2psgd_torch.attach(model, sgd(model), keep=scaler, **where)
    with pytest.raises(TrainerError, match="no daemon"):
        p2psgd_torch.attach(model, sgd(model), **where)


def replace(model: Any, optimizer: Any) -> None:
    model.first.bias = nn.Parameter(torch.zeros(6))


def rebuild(model: Any, optimizer: Any) -> None:
    model.first = nn.Linear(6, 6)


def untie(model: Any, optimizer: Any) -> None:
    model.last.weight = nn.Parameter(model.last.weight.detach().clone())


def move(model: Any, optimizer: Any) -> None:
    model.norm.weight.data = torch.ones(6)


def thaw(model: Any, optimizer: Any) -> None:
    model.frozen.requires_grad_(True)


def enlarge(model: Any, optimizer: Any) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def exchange(model: Any, optimizer: Any) -> None:
    group = optimizer.param_groups[0]
    group["params"] = [nn.Parameter(each.detach().clone()) for each in group["params"]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (replace, "'first.bias' of the model is another one than when"),
        (rebuild, "'first' of the model is another one than when"),
        (untie, "'last.weight' of the model is another one than when"),
        (move, "'norm.weight' has been given other memory"),
        (thaw, "'frozen.weight' was frozen when"),
        (enlarge, "call add_param_group before that"),
        (exchange, "the optimizer has other parameters than when"),
    ],
    ids=["replace", "rebuild", "untie", "move", "thaw", "enlarge", "exchange"],
)
def test_a_model_or_an_optimizer_that_was_changed_later_is_refused_at_the_next_step(
    daemon: Daemon, change: Callable[[Model, Any], None], words: str
) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        take_gradient(model, 0)
        optimizer.step()
        change(model, optimizer)
        with pytest.raises(TrainerError, match=words):
            optimizer.step()
        assert link.steps == 1
