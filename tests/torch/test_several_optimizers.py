"""Several optimizers of one model: all of them make one step together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests import DEADLINE_S
from tests.ipc.daemons import Daemon, StartDaemon
from tests.ipc.rings import DenseRing, Ring
from tests.torch.models import NAMES, WEIGHTS, flat, make_model
from tests.torch.needed import p2psgd_torch, torch
from tests.torch.test_in_rings import open_to, train

pytestmark = pytest.mark.long


def split(model: Any) -> tuple[list[Any], list[Any]]:
    """Return the matrices and the other parameters."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return [each for each in trained if each.dim() == 2], [each for each in trained if each.dim() < 2]


def make_optimizers(model: Any) -> list[Any]:
    """Return SGD for the matrix, and AdamW for the rest."""
    matrices, others = split(model)
    return [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(others, lr=1e-2)]


def attach(model: Any, optimizers: Sequence[Any], daemon: Daemon, **options: Any) -> Any:
    return p2psgd_torch.attach(model, optimizers, control=daemon.path, run_horizon=False, **options)


def draw_gradients(model: Any, seed: int, scale: float = 1.0) -> None:
    """Give each trained parameter a gradient. Those of real batches may be zero but for rounding, and Adam
    makes whole steps of that.
    """
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            numbers = scale * torch.randn(parameter.shape, generator=random)
            parameter.grad = numbers.to(torch.bfloat16).to(parameter.dtype)


def point(link: Any) -> Any:
    return torch.tensor(link.link.weights + link.link.residual)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_step_of_all_is_sent_once_with_what_each_has_changed(
    daemon: Daemon, order: tuple[int, int]
) -> None:
    model = make_model()
    plain = copy.deepcopy(model)
    optimizers, plain_optimizers = make_optimizers(model), make_optimizers(plain)
    with attach(model, optimizers, daemon, density=0.1) as link:
        assert list(link.link.tensors) == NAMES
        for number in range(8):
            for each, its in ((model, optimizers), (plain, plain_optimizers)):
                draw_gradients(each, number)
                for place in order:
                    its[place].step()
            assert link.steps == number + 1
            torch.testing.assert_close(point(link), flat(plain), rtol=0, atol=1e-5)
        assert 0 < sum(link.link.sent.values()) < 8 * WEIGHTS / 2
        daemon.take_all()
        np.testing.assert_array_equal(link.link.weights, daemon.weights())


@pytest.mark.parametrize("options", [{}, {"local_steps": 2}])
def test_a_step_that_one_of_them_leaves_out_has_what_the_other_has_changed(
    daemon: Daemon, options: dict[str, Any]
) -> None:
    """As a GradScaler does that finds infinite gradients of one of them alone."""
    model = make_model()
    plain = copy.deepcopy(model)
    optimizers, plain_optimizers = make_optimizers(model), make_optimizers(plain)
    with attach(model, optimizers, daemon, density=0.1, **options) as link:
        for number in range(6):
            for each, its in ((model, optimizers), (plain, plain_optimizers)):
                draw_gradients(each, number)
                its[0].step()
                if number % 2:
                    its[1].step()
            torch.testing.assert_close(flat(model), flat(plain), rtol=0, atol=1e-5)
        assert link.steps == 6
        torch.testing.assert_close(point(link), flat(plain), rtol=0, atol=1e-5)


def test_a_step_that_a_fused_optimizer_leaves_out_is_one_of_the_other_alone(daemon: Daemon) -> None:
    model = make_model()
    optimizers = make_optimizers(model)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group.update(fused=True, foreach=False)
    with attach(model, optimizers, daemon) as link:
        for spoilt, steps in (((), 1), ((0,), 2), ((0, 1), 2), ((), 3)):
            draw_gradients(model, steps)
            before = flat(model)
            for place, optimizer in enumerate(optimizers):
                optimizer.found_inf = torch.tensor(float(place in spoilt))
                optimizer.grad_scale = torch.tensor(1.0)
                optimizer.step()
            assert link.steps == steps
            assert torch.equal(flat(model), before) == (len(spoilt) == 2)


def test_a_step_that_fails_in_one_of_them_is_undone_in_all(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    optimizers = make_optimizers(model)

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    with attach(model, optimizers, daemon) as link:
        before = flat(model)
        draw_gradients(model, 1)
        optimizers[0].step()
        with monkeypatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "_init_group", fail)
            with pytest.raises(ValueError, match="a bug"):
                optimizers[1].step()
        draw_gradients(model, 1, scale=0.0)
        optimizers[1].param_groups[0]["lr"] = 0.0
        optimizers[1].step()
        assert link.steps == 0
        assert torch.equal(flat(model), before)


def test_a_script_that_is_started_again_has_the_state_of_each(daemon: Daemon) -> None:
    model = make_model()
    optimizers = make_optimizers(model)
    with attach(model, optimizers, daemon):
        for number in range(3):
            draw_gradients(model, number)
            for optimizer in optimizers:
                optimizer.step()
    later = make_model()
    others = make_optimizers(later)
    with attach(later, others, daemon) as link:
        assert link.steps == 3
        for optimizer, other in zip(optimizers, others, strict=True):
            torch.testing.assert_close(other.state_dict(), optimizer.state_dict(), rtol=0, atol=0)
    third = make_model()
    with pytest.raises(TrainerError, match="it is of SGD, AdamW, and here are AdamW, SGD"):
        attach(third, make_optimizers(third)[::-1], daemon)


@pytest.mark.parametrize("payload", ["sparse", "dense"])
def test_in_rings_all_nodes_end_alike(start_daemon: StartDaemon, payload: str) -> None:
    def several(model: Any) -> Any:
        adam = [torch.optim.AdamW(part, lr=1e-2) for part in split(model)]
        plain = [torch.optim.SGD(part, lr=0.1, momentum=0.9) for part in split(model)]
        return Together(adam if payload == "sparse" else plain)

    daemons = [start_daemon(1), start_daemon(2)]
    ring = Ring(daemons) if payload == "sparse" else DenseRing(daemons, WEIGHTS)
    first, second = train(ring, several, payload)
    assert torch.equal(first, second)


def test_a_dense_ring_that_averages_gradients_takes_one_optimizer(start_daemon: StartDaemon) -> None:
    ring = DenseRing([start_daemon(1)], WEIGHTS)
    model = make_model()
    with ThreadPoolExecutor() as pool:
        options = {"mode": "ring", "payload": "dense", "control": ring.daemons[0].path}
        attached = pool.submit(p2psgd_torch.attach, model, make_optimizers(model), **options)
        open_to(ring)
        with pytest.raises(
            TrainerError, match=r"several optimizers in a dense ring must all be torch\.optim\.SGD"
        ):
            attached.result(DEADLINE_S)


def test_skip_after_a_step_of_one_of_them_keeps_that_step(daemon: Daemon) -> None:
    model = make_model()
    optimizers = make_optimizers(model)
    with attach(model, optimizers, daemon) as link:
        before = flat(model)
        draw_gradients(model, 1)
        optimizers[0].step()
        after = flat(model)
        link.skip()
        assert link.steps == 1
        torch.testing.assert_close(flat(model), after, rtol=0, atol=1e-6)
        assert not torch.equal(after, before)
        link.skip()
        assert link.steps == 1


class Together(list[Any]):
    """Optimizers that a loop for one can step."""

    def step(self) -> None:
        for each in self:
            each.step()


def test_rounded_parameters_take_part(daemon: Daemon) -> None:
    model = make_model().to(torch.bfloat16)
    model.last.weight = model.first.weight
    optimizers = make_optimizers(model)
    exact = copy.deepcopy(model).float()
    exact.last.weight = exact.first.weight
    plain_optimizers = make_optimizers(exact)
    with attach(model, optimizers, daemon, density=0.1) as link:
        for number in range(4):
            for each in (model, exact):
                draw_gradients(each, number)
            for optimizer in (*optimizers, *plain_optimizers):
                optimizer.step()
        torch.testing.assert_close(point(link), flat(exact), rtol=0, atol=1e-5)


def test_betas_and_momentum_of_each_count_steps_of_the_run(daemon: Daemon) -> None:
    model = make_model()
    optimizers = make_optimizers(model)
    with p2psgd_torch.attach(model, optimizers, control=daemon.path) as link:
        link._pace.ratio = 2.0
        seen: list[Any] = []
        for optimizer, key in zip(optimizers, ("momentum", "betas"), strict=True):
            optimizer.register_step_pre_hook(lambda its, *_, key=key: seen.append(its.param_groups[0][key]))
        draw_gradients(model, 1)
        for optimizer in optimizers:
            optimizer.step()
        assert seen == [pytest.approx(0.81), pytest.approx((0.81, 0.998001))]
        assert optimizers[0].param_groups[0]["momentum"] == 0.9
        assert optimizers[1].param_groups[0]["betas"] == (0.9, 0.999)


def test_lists_that_are_none_are_refused(daemon: Daemon) -> None:
    model = make_model()
    first, second = make_optimizers(model)
    everything = torch.optim.SGD(model.parameters(), lr=0.1)
    for optimizers, words in (
        ([], "it was given Model and an empty list"),
        ([first, model], "it was given Model and SGD, Model"),
        ([first, first], "one optimizer twice"),
        ([everything, second], r"two optimizers have parameter 'scale'"),
        ([second], r"parameter 'first.weight' requires a gradient and is in no group"),
    ):
        with pytest.raises(TrainerError, match=words):
            attach(model, optimizers, daemon)
