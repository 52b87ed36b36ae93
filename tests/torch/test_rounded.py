"""Models of bfloat16 and float16: the run is float32, and the model computes with the rounded numbers."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import Daemon, StartDaemon, make_update, make_words
from tests.ipc.rings import DenseRing, Ring
from tests.torch.models import NAMES, WEIGHTS, make_model
from tests.torch.needed import nn, p2psgd_torch, torch
from tests.torch.test_in_rings import open_to

pytestmark = pytest.mark.long

TYPES = [torch.bfloat16, torch.float16]


def rounded(kind: Any, *, mixed: bool = False) -> Any:
    """The model with parameters of this type; mixed: its norm and its scale stay float32."""
    model = make_model()
    for name, parameter in model.named_parameters():
        if not (mixed and (name == "scale" or name.startswith("norm"))):
            parameter.data = parameter.data.to(kind)
    model.last.weight = model.first.weight
    return model


def take_gradient(model: Any, seed: int) -> Any:
    """Compute the gradient of mini-batch `seed`, in the type of each parameter. Return the loss."""
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    hidden = torch.nn.functional.linear(inputs, model.first.weight.float(), model.first.bias.float())
    hidden = hidden * model.norm.weight.float() + model.norm.bias.float()
    outputs = model.last.weight.float() @ hidden.relu().T * model.scale.float()
    loss = (outputs.T + model.last.bias.float() - inputs.flip(1)).square().mean()
    model.zero_grad()
    loss.backward()
    return loss


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def attach(model: Any, optimizer: Any, daemon: Daemon, **options: Any) -> Any:
    return p2psgd_torch.attach(model, optimizer, control=daemon.path, run_horizon=False, **options)


def point(link: Any) -> Any:
    return link.link.weights + link.link.residual


def numbers(model: Any) -> Any:
    parts = [each.detach().float().reshape(-1) for each in model.parameters() if each.requires_grad]
    return torch.cat(parts).numpy()


def check_rounded(model: Any, exact: Any) -> None:
    """Each parameter is the exact number, rounded to its own type."""
    begin = 0
    for parameter in (each for each in model.parameters() if each.requires_grad and each.numel()):
        expected = torch.tensor(exact[begin : begin + parameter.numel()]).to(parameter.dtype)
        assert torch.equal(parameter.detach().reshape(-1), expected)
        begin += parameter.numel()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_a_rounded_model_trains_as_float32_masters_would(daemon: Daemon, kind: Any, mixed: bool) -> None:
    model = rounded(kind, mixed=mixed)
    types = [each.dtype for each in model.parameters()]
    masters = copy.deepcopy(model).float()  # trained by hand, with the same gradients
    masters.last.weight = masters.first.weight
    optimizer, plain = adam(model), adam(masters)
    with attach(model, optimizer, daemon, density=0.1) as link:
        assert list(link.link.tensors) == NAMES
        for number in range(12):
            take_gradient(model, number)
            for own, other in zip(masters.parameters(), model.parameters(), strict=True):
                own.grad = None if other.grad is None else other.grad.float().clone()
            for each, stepped in ((model, optimizer), (masters, plain)):
                nn.utils.clip_grad_norm_(each.parameters(), 0.5)
                stepped.step()
            assert [each.dtype for each in model.parameters()] == types
            assert model.first.weight.grad.dtype == kind
            check_rounded(model, point(link))
            np.testing.assert_allclose(point(link), numbers(masters), rtol=0, atol=1e-4 * (1 + number))
            kinds = {value.dtype for state in optimizer.state.values() for value in state.values()}
            assert kinds == {torch.float32}
        daemon.take_all()
        np.testing.assert_array_equal(link.link.weights, daemon.weights())
    check_rounded(model, daemon.weights())
    take_gradient(model, 99)
    optimizer.step()  # an ordinary optimizer of an ordinary model again


def test_small_changes_add_up_that_bfloat16_alone_would_lose(daemon: Daemon) -> None:
    model = rounded(torch.bfloat16)
    before = numbers(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with attach(model, optimizer, daemon) as link:
        for _ in range(64):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, -(2.0**-14))
            optimizer.step()
        np.testing.assert_allclose(point(link), before + 64 * 2.0**-14, rtol=0, atol=1e-5)
        assert model.scale.item() == 1.0  # the next bfloat16 is 1 + 2**-7, and half of that rounds to even
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, -(2.0**-11))
        optimizer.step()
        assert model.scale.item() == 1.0 + 2.0**-7


def test_peers_and_what_the_script_changes_by_itself_reach_masters_and_model(daemon: Daemon) -> None:
    model = rounded(torch.bfloat16)
    optimizer = adam(model)
    with attach(model, optimizer, daemon) as link:
        words = make_words(np.array([0]), np.array([0]))  # the scale
        daemon.peer_update(make_update(words, WEIGHTS, magnitude=1 << 18))
        with torch.no_grad():
            model.last.bias.fill_(0.375)
        assert link.link.receive() == 1
        assert model.scale.item() == 1.25
        assert (model.last.bias == 0.375).all()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.param_groups[0]["weight_decay"] = 0.0
        optimizer.step()
        np.testing.assert_allclose(point(link)[-6:], 0.375)
        assert (model.last.bias == 0.375).all()


def test_a_script_that_is_started_again_has_its_float32_state_back(daemon: Daemon) -> None:
    model = rounded(torch.bfloat16)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)  # has a state before its first step
    with attach(model, optimizer, daemon) as link:
        for number in range(3):
            take_gradient(model, number)
            optimizer.step()
        sums = optimizer.state[model.first.weight]["sum"].clone()
        at = point(link).copy()
        assert sums.dtype == torch.float32
        assert not torch.equal(sums, sums.bfloat16().float())
    later = rounded(torch.bfloat16)
    other = torch.optim.Adagrad(later.parameters(), lr=1e-2)
    with attach(later, other, daemon) as link:
        assert torch.equal(other.state[later.first.weight]["sum"], sums)
        np.testing.assert_array_equal(point(link), at)
        check_rounded(later, at)
        saved = other.state_dict()
        other.load_state_dict(saved)  # by the script itself
        assert torch.equal(other.state[later.first.weight]["sum"], sums)
        assert later.first.weight.dtype == torch.bfloat16
        state = later.state_dict()
        assert state["first.weight"].dtype == torch.bfloat16


def test_sparse_gradients_and_channels_last_work_in_rounded_models_too(daemon: Daemon) -> None:
    model = nn.ModuleDict({"words": nn.Embedding(50, 8, sparse=True), "image": nn.Conv2d(4, 6, 3)})
    model = model.to(memory_format=torch.channels_last).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer, daemon) as link:
        before = point(link).copy()
        for _ in range(2):
            optimizer.zero_grad()
            model["words"](torch.tensor([1, 3])).float().sum().backward()
            model["image"](torch.ones(2, 4, 8, 8, dtype=torch.bfloat16)).float().sum().backward()
            optimizer.step()
        assert model["words"].weight.grad.is_sparse
        changes = (point(link) - before)[:400].reshape(50, 8)
        np.testing.assert_allclose(changes[[1, 3]], -0.2, rtol=1e-5)
        assert not changes[[0, 2]].any()
        check_rounded(model, point(link))
        with torch.no_grad():
            model["image"].weight[5, 3, 2, 2] = 0.5
        link.link.receive()
        assert model["image"].weight[5, 3, 2, 2].item() == 0.5


def test_a_step_that_fails_leaves_a_rounded_model(daemon: Daemon) -> None:
    model = rounded(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer, daemon) as link:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan)
        with pytest.raises(TrainerError, match="the step has made 'scale' NaN"):
            optimizer.step()
        check_rounded(model, point(link))
        with pytest.raises(TrainerError, match=r"a closure would compute with those: call step\(\) without"):
            optimizer.step(lambda: take_gradient(model, 1))
        check_rounded(model, point(link))
        take_gradient(model, 1)
        optimizer.step()
        check_rounded(model, point(link))
        assert link.steps == 1


@pytest.mark.parametrize("payload", ["dense", "sparse"])
def test_in_a_ring_rounded_models_are_the_same_at_all_nodes(start_daemon: StartDaemon, payload: str) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    ring = DenseRing(daemons, WEIGHTS) if payload == "dense" else Ring(daemons)
    models = [rounded(torch.bfloat16, mixed=True) for _ in daemons]

    def train(place: int) -> Any:
        model, optimizer = models[place], adam(models[place])
        with attach(model, optimizer, ring.daemons[place], mode="ring", payload=payload) as link:
            for number in range(4):
                if number == 1 + place:
                    link.skip()
                else:
                    take_gradient(model, 10 * number + place)
                    optimizer.step()
            check_rounded(model, link.link.weights)
            return link.link.weights.copy()

    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(train, place) for place in (0, 1)]
        open_to(ring)
        first, second = (each.result(60) for each in waiting)
    np.testing.assert_array_equal(first, second)
    assert torch.equal(models[0].first.weight, models[1].first.weight)
