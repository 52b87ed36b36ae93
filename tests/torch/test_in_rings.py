"""Models in rings of two nodes: the mean of gradients or of changes, and updates in rounds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import StartDaemon
from tests.ipc.rings import DenseRing, Ring
from tests.torch.models import WEIGHTS, flat, make_model, take_gradient
from tests.torch.needed import nn, p2psgd_torch, torch

pytestmark = pytest.mark.long

ROUNDS = 6


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)


def adam(model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def open_to(ring: Ring) -> None:
    """Open the first round once all trainers are there."""
    for daemon in ring.daemons:
        daemon.until(partial(bool, daemon.host.attached), "the trainer has attached")
    ring.open()


def train(ring: Ring, make_optimizer: Callable[[Any], Any], payload: str) -> list[Any]:
    """What each of two nodes ends with: flat weights; each skips a round."""

    def one(place: int) -> Any:
        model = models[place]
        optimizer = make_optimizer(model)
        options = {"mode": "ring", "payload": payload, "control": ring.daemons[place].path}
        with p2psgd_torch.attach(model, optimizer, **options) as link:
            for number in range(ROUNDS):
                if number == 2 + place:
                    link.skip()
                else:
                    take_gradient(model, 10 * number + place)
                    optimizer.step()
            return flat(model)

    models = [make_model(), make_model()]  # here, for the seed is the process's
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(one, place) for place in (0, 1)]
        open_to(ring)
        return [each.result(60) for each in waiting]


def trained(model: Any) -> list[Any]:
    return [each for each in model.parameters() if each.requires_grad and each.numel()]


@pytest.mark.parametrize(
    ("make_optimizer", "behind", "rounds"),
    [
        (sgd, 0, ROUNDS),
        (adam, 0, 2 * ROUNDS),
        (adam, 1, 1 + 2 * ROUNDS),
    ],  # those who come to a round of changes
)
def test_in_a_dense_ring_nodes_do_what_one_does_with_the_mean_of_their_gradients(
    start_daemon: StartDaemon, make_optimizer: Callable[[Any], Any], behind: int, rounds: int
) -> None:
    ring = DenseRing([start_daemon(1), start_daemon(2)], WEIGHTS)
    ring.rounds = behind
    first, second = train(ring, make_optimizer, "dense")
    assert torch.equal(first, second)
    assert ring.rounds == rounds + behind

    models = [make_model(), make_model()]
    optimizer = make_optimizer(models[0])
    for number in range(ROUNDS):
        for place, model in enumerate(models):
            take_gradient(model, 10 * number + place, scale=0.0 if number == 2 + place else 1.0)
        for one, other in zip(trained(models[0]), trained(models[1]), strict=True):
            one.grad = (one.grad + other.grad) / 2
        optimizer.step()
        nn.utils.vector_to_parameters(flat(models[0]), trained(models[1]))
    torch.testing.assert_close(first, flat(models[0]), rtol=0, atol=1e-6)


def test_in_a_sparse_ring_all_have_the_same_weights_after_each_round(start_daemon: StartDaemon) -> None:
    ring = Ring([start_daemon(1), start_daemon(2)])
    first, second = train(ring, adam, "sparse")
    assert torch.equal(first, second)
    assert ring.rounds == ROUNDS
    np.testing.assert_array_equal(first, ring.daemons[0].weights())


def attach_alone(ring: Ring, model: Any, optimizer: Any, payload: str) -> Any:
    options = {"mode": "ring", "payload": payload, "control": ring.daemons[0].path}
    with ThreadPoolExecutor() as pool:
        attached = pool.submit(p2psgd_torch.attach, model, optimizer, **options)
        open_to(ring)
    return attached.result(30)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_in_a_dense_ring_no_decay_moves_what_was_frozen_later(start_daemon: StartDaemon, kind: Any) -> None:
    model = make_model()
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.5)
    with attach_alone(DenseRing([start_daemon(1)], WEIGHTS), model, optimizer, "dense") as link:
        before = model.norm.weight.clone()
        model.norm.requires_grad_(False)
        take_gradient(model, 1)
        optimizer.step()
        link.skip()
        assert torch.equal(model.norm.weight, before)


@pytest.mark.parametrize("fused", [False, True])
def test_in_a_sparse_ring_a_step_that_a_scaler_leaves_out_is_one_empty_share_of_the_script(
    start_daemon: StartDaemon, fused: bool
) -> None:
    ring = Ring([start_daemon(1)])
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with attach_alone(ring, model, optimizer, "sparse") as link:
        for spoilt in (True, False):
            model.zero_grad()
            scaler.scale(model(torch.ones(8, 6)).square().mean()).backward()
            if spoilt:
                model.scale.grad.fill_(torch.inf)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() < before:
                link.skip()
        assert (ring.rounds, link.steps) == (2, 1)


def test_what_cannot_be_averaged_is_refused(start_daemon: StartDaemon) -> None:
    ring = DenseRing([start_daemon(1)], WEIGHTS)
    model = make_model()
    optimizer = adam(model)
    with attach_alone(ring, model, optimizer, "dense") as link:
        with pytest.raises(TrainerError, match=r"call step\(\) without one"):
            optimizer.step(lambda: take_gradient(model, 0))
        fused = torch.optim.Adam(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu")
        fused.register_step_pre_hook(link._before_step)
        scaler.scale(model(torch.ones(8, 6)).sum()).backward()
        with pytest.raises(TrainerError, match=r"make it with fused=False, and call skip\(\)"):
            scaler.step(fused)
        model.zero_grad()
        model.first.bias.grad = torch.ones(6).to_sparse()
        with pytest.raises(TrainerError, match=r"gradient of 'first.bias' is sparse"):
            optimizer.step()
