"""A model on its link: what a step gives, what comes of it, and all that PyTorch scripts do besides."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import Daemon, make_update, make_words, wait_until
from tests.torch.models import NAMES, WEIGHTS, flat, make_model, take_gradient
from tests.torch.needed import nn, p2psgd_torch, torch

pytestmark = pytest.mark.long

MakeOptimizer = Callable[[Any], Any]


def two_groups(model: Any) -> Any:
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    others = [each for name, each in model.named_parameters() if not name.endswith("bias")]
    return torch.optim.AdamW([{"params": others}, {"params": biases, "lr": 3e-3}], lr=1e-2)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
    "groups": two_groups,
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=1e-2),
}


def attach(model: Any, optimizer: Any, daemon: Daemon, **options: Any) -> Any:
    """With what the optimizer changes as it is, and the model at the replica's weights."""
    plain = {"own_residual": False, "run_horizon": False}
    return p2psgd_torch.attach(model, optimizer, control=daemon.path, **plain, **options)


def sgd(model: Any, rate: float = 0.1) -> Any:
    return torch.optim.SGD(model.parameters(), lr=rate)


class Inherited(torch.optim.SGD):  # type: ignore[misc]
    """Its step changes parameters before and after the one that it calls."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.5)
            loss = super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(0.25)
        return loss


def test_a_step_that_raises_keeps_nothing_of_the_functions_that_called_it(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    kept = []

    def train() -> None:
        activations = torch.zeros(1000)
        kept.append(weakref.ref(activations))

        def closure() -> Any:
            raise torch.OutOfMemoryError("as a GPU raises it")

        optimizer.step(closure)

    with attach(model, optimizer, daemon, density=0.1) as link:
        with pytest.raises(torch.OutOfMemoryError):
            train()
        gc.collect()
        assert kept[0]() is None
        take_gradient(model, 1)
        optimizer.step()
        assert link.steps == 1


def test_a_step_that_calls_the_step_of_its_parent_is_one_step(daemon: Daemon) -> None:
    model = make_model()
    sgd(model)  # now PyTorch calls hooks for the steps of both classes
    optimizer = Inherited([each for each in model.parameters() if each.requires_grad], lr=0.1)
    with attach(model, optimizer, daemon, density=0.1) as link:
        for number in range(3):
            plain = copy.deepcopy(model)
            for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
                other.requires_grad_(parameter.requires_grad)
            trained = [each for each in plain.parameters() if each.requires_grad]
            before = link.link.weights + link.link.residual
            take_gradient(model, number)
            take_gradient(plain, number)
            Inherited(trained, lr=0.1).step()
            change = flat(plain).numpy() - link.link.weights
            optimizer.step()
            assert link.steps == number + 1
            np.testing.assert_allclose(
                link.link.weights + link.link.residual, before + change, rtol=0, atol=1e-6
            )


def test_a_step_of_a_parent_that_raises_leaves_the_next_step_whole(daemon: Daemon) -> None:
    model = make_model()
    sgd(model)
    optimizer = Inherited([each for each in model.parameters() if each.requires_grad], lr=0.1)

    def fail() -> None:
        raise ValueError("a closure's own")

    with attach(model, optimizer, daemon) as link:
        take_gradient(model, 1)
        with pytest.raises(ValueError, match="a closure's own"):
            optimizer.step(fail)
        assert link.steps == 0
        optimizer.step()
        assert link.steps == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_any_optimizer_changes_is_sent_or_waits_and_nothing_of_it_is_lost(
    daemon: Daemon, name: str
) -> None:
    model = make_model()
    optimizer = OPTIMIZERS[name](model)
    with attach(model, optimizer, daemon, density=0.1) as link:
        assert list(link.link.tensors) == NAMES
        np.testing.assert_array_equal(flat(model), daemon.weights())
        plain = copy.deepcopy(model)
        plain_optimizer = OPTIMIZERS[name](plain)
        sent = 0
        for number in range(12):
            with torch.no_grad():  # the same weights before each step, and states of their own
                for own, other in zip(plain.parameters(), model.parameters(), strict=True):
                    own.copy_(other)
            waiting = torch.tensor(link.link.residual)
            for each, stepped in ((model, optimizer), (plain, plain_optimizer)):
                take_gradient(each, number)
                nn.utils.clip_grad_norm_(each.parameters(), 0.5)
                stepped.step()
            daemon.take_all()
            np.testing.assert_array_equal(flat(model), daemon.weights())
            after = flat(model) + torch.tensor(link.link.residual)
            torch.testing.assert_close(after - waiting, flat(plain), rtol=0, atol=2e-7)
            sent += sum(link.link.sent.values())
        assert link.steps == 12
        assert 0 < sent < 12 * WEIGHTS
        state = optimizer.state_dict()
        assert state["param_groups"] == plain_optimizer.state_dict()["param_groups"]
        assert model.first.weight is model.last.weight


def test_parameters_follow_the_peers_and_stay_views_of_one_tensor(daemon: Daemon) -> None:
    model = make_model()
    frozen = model.frozen.weight.clone()
    optimizer = sgd(model)
    with attach(model, optimizer, daemon) as link:
        before = model.scale.item()
        words = make_words(np.array([0]), np.array([0]))  # the scale
        daemon.peer_update(make_update(words, WEIGHTS, magnitude=1 << 20))
        take_gradient(model, 0, scale=0.0)
        optimizer.step()
        assert model.scale.item() == pytest.approx(before + 1)
        assert len({each.untyped_storage().data_ptr() for each in model.parameters()}) == 4
        assert torch.equal(model.frozen.weight, frozen)
        np.testing.assert_array_equal(flat(model), link.link.weights)


class Around(torch.optim.SGD):  # type: ignore[misc]
    """Its steps are those of another one."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.param_groups[0]["params"], lr=0.1)
        self.inner = inner

    def step(self) -> None:
        self.inner.step()


def test_a_step_of_another_optimizer_is_undone_and_refused_but_one_in_or_around_the_own_is_not(
    daemon: Daemon,
) -> None:
    model = make_model()
    optimizer = Around(sgd(model))
    with attach(model, optimizer, daemon) as link:
        around = Around(optimizer)
        before = flat(model)
        take_gradient(model, 1)
        sgd(make_model()).step()
        with pytest.raises(TrainerError, match="another optimizer, SGD, has changed"):
            sgd(model).step()
        assert torch.equal(flat(model), before)
        for _ in range(2):
            around.step()
        assert link.steps == 2
        daemon.take_all()
        assert not torch.equal(flat(model), before)
        np.testing.assert_array_equal(flat(model), daemon.weights())
    sgd(model).step()


def test_what_waits_shrinks_with_the_rate_and_a_rate_of_zero_sends_nothing_of_it(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model, 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: [1.0, 0.0, 0.1, 0.1][step])
    with attach(model, optimizer, daemon, tau=100.0) as link:
        take_gradient(model, 1)
        optimizer.step()
        waiting = link.link.residual.copy()
        assert waiting.any()
        for factor in (1, 0.1, 0.1):
            scheduler.step()
            take_gradient(model, 1, scale=0.0)
            optimizer.step()
            np.testing.assert_allclose(link.link.residual, waiting * factor, rtol=1e-5)
        assert sum(link.link.sent.values()) == 0


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_leaves_out_is_no_update(daemon: Daemon, fused: bool) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with attach(model, optimizer, daemon, keep=[scaler]) as link:
        for spoilt in (False, True, False):
            before = (flat(model), link.steps)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(8, 6)).square().mean()
            model.zero_grad()
            scaler.scale(loss).backward()
            if spoilt:
                model.scale.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
            assert link.steps == before[1] + (not spoilt)
            if spoilt:
                assert torch.equal(flat(model), before[0])
        assert scaler.get_scale() == 2.0
        assert link.link.residual.any()


def test_a_step_that_makes_a_nan_is_refused_by_the_parameters_name_and_changes_nothing(
    daemon: Daemon,
) -> None:
    model = make_model()
    optimizer = sgd(model)
    with attach(model, optimizer, daemon):
        take_gradient(model, 1)
        model.norm.bias.grad[2] = torch.nan
        before = flat(model)
        with pytest.raises(TrainerError, match=r"made 'norm\.bias' NaN or infinite"):
            optimizer.step()
        assert torch.equal(flat(model), before)
    daemon.take_all()
    assert not daemon.host.updates


class Descent(torch.optim.Optimizer):  # type: ignore[misc]
    """Its own idea of a learning rate; it can be interrupted when all is changed."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": None})
        self.interrupted = False

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
        if self.interrupted:
            raise KeyboardInterrupt


def test_an_interrupted_step_waits_once_if_it_was_given_and_else_not_at_all(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    optimizer = Descent(model.parameters())
    with attach(model, optimizer, daemon, tau=1.0) as link:

        def interrupt() -> int:
            raise KeyboardInterrupt

        take_gradient(model, 1)
        with monkeypatch.context() as patch:
            patch.setattr(link._link, "receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                optimizer.step()
        waiting = link.link.residual.copy()
        assert waiting.any()
        optimizer.interrupted = True
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        optimizer.interrupted = False
        take_gradient(model, 1, scale=0.0)
        optimizer.step()
        np.testing.assert_array_equal(link.link.residual, waiting)
        np.testing.assert_array_equal(flat(model), daemon.weights())


def test_what_a_script_receives_between_two_steps_is_not_taken_for_its_own_change(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with attach(model, optimizer, daemon, tau=1e-3) as link:
        words = make_words(np.array([0]), np.array([0]))  # the scale
        daemon.peer_update(make_update(words, WEIGHTS, magnitude=1 << 20))
        with torch.no_grad():
            model.last.bias.add_(0.25)
        before = flat(model)
        assert link.link.receive() == 1, "as whoever waits for a shard of the data does"
        before[0] += 1
        torch.testing.assert_close(flat(model), before, rtol=0, atol=2e-7)
        take_gradient(model, 0, scale=0.0)
        optimizer.step()
        daemon.take_all()
        np.testing.assert_array_equal(flat(model), daemon.weights())
        after = flat(model) + torch.tensor(link.link.residual)
        torch.testing.assert_close(after, before, rtol=0, atol=2e-7)


def test_what_the_steps_do_is_refused_to_a_script(daemon: Daemon) -> None:
    with attach(model := make_model(), sgd(model), daemon) as link:
        with pytest.raises(TrainerError, match=r"each optimizer.step\(\) sends what it has changed"):
            link.link.send(np.zeros(WEIGHTS, np.float32), threshold=1)
        with pytest.raises(TrainerError, match=r"call skip\(\) of what p2psgd.torch.attach has returned"):
            link.link.skip()
        with pytest.raises(TrainerError, match=r"attach\(keep=\[...\]\)"):
            link.link.keep(dict)
        assert link.steps == 0


def test_a_script_that_is_started_again_has_its_optimizer_buffers_and_schedulers_back(daemon: Daemon) -> None:
    def life() -> tuple[Any, Any, Any]:
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.cos(step / 10))

    model, optimizer, scheduler = life()
    with attach(model, optimizer, daemon, keep=[scheduler]) as link:
        for number in range(5):
            take_gradient(model, number)
            optimizer.step()
            scheduler.step()
        assert isinstance(optimizer.param_groups[0]["lr"], np.float64)
        model.cache = torch.ones(7)
        rates = link._steps.rates
    later, other, another = life()
    with attach(later, other, daemon, keep=[another]) as link:
        np.testing.assert_array_equal(flat(later), flat(model))
        torch.testing.assert_close(other.state_dict(), optimizer.state_dict(), rtol=0, atol=0)
        assert dict(another.state_dict()) == dict(scheduler.state_dict())
        assert torch.equal(later.norm.running_mean, model.norm.running_mean)
        assert int(later.norm.num_batches_tracked) == 5
        assert (link.steps, link._steps.rates) == (5, rates)
    third = life()
    words = r"does not fit the script \(it is of Adam, and here are SGD\): .*keep of before, or start"
    with pytest.raises(TrainerError, match=words):
        attach(third[0], torch.optim.SGD(third[0].parameters(), lr=1.0), daemon)
    assert third[0].first.weight.untyped_storage().nbytes() == 36 * 4  # untouched


def test_a_script_that_is_killed_in_its_first_minute_has_the_state_of_its_tenth_step_back(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps, known in ((9, False), (12, True)):
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        link = attach(model, optimizer, daemon)
        for number in range(steps):
            take_gradient(model, number)
            optimizer.step()
            if number == 9:
                tenth = copy.deepcopy(optimizer.state_dict())
        link.link._keeping.make_state = None  # kill -9 gives none
        link._remove_hooks()
        link._link._client.close()
        wait_until(lambda: not daemon.trainer_status()["attached"], "the daemon has seen its end")
        assert (daemon.server.session.script.state is not None) == known
        assert (
            "nothing of the script was kept yet when it ended after" not in capsys.readouterr().err or known
        )
    later = make_model()
    other = torch.optim.Adam(later.parameters(), lr=1e-2)
    with attach(later, other, daemon) as link:
        assert link.steps == 21
        torch.testing.assert_close(other.state_dict(), tenth, rtol=0, atol=0)
        assert int(later.norm.num_batches_tracked) == 10


def test_weights_are_not_loaded_under_a_link_but_copies_are_free(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    other = make_model(2).state_dict()
    with attach(model, optimizer, daemon):
        before = flat(model)
        pickled = io.BytesIO()
        torch.save(model, pickled)
        pickled.seek(0)
        for average in (copy.deepcopy(model), torch.load(pickled, weights_only=False)):
            assert torch.equal(flat(average), before)
            average.load_state_dict(other)
        for part in (model, model.first):
            state = other if part is model else make_model(2).first.state_dict()
            model.frozen.load_state_dict(model.frozen.state_dict())  # is this node's own
            with pytest.raises(TrainerError, match="load them before"):
                part.load_state_dict(state)
            assert torch.equal(flat(model), before)
    model.load_state_dict(other)
    take_gradient(model, 1)
    optimizer.step()  # an ordinary one again
    assert not torch.equal(flat(model), before)


def test_a_state_that_is_too_large_is_kept_without_the_optimizers_and_that_is_said_once(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = importlib.import_module("p2psgd.torch.checkpoint")
    monkeypatch.setattr(kept, "STATE_BYTES_MAX", kept.HEADERS_BYTES + 4096)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(40, 20))
    later = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with attach(model, optimizer, daemon) as link:
        model(torch.ones(2, 40)).sum().backward()
        optimizer.step()
        for _ in range(2):
            assert "optimizer" not in link.link._keeping.make_state()
    with attach(later, torch.optim.Adam(later.parameters()), daemon) as link:
        assert torch.equal(flat(later), flat(model))
    assert capsys.readouterr().err.count("after a restart the optimizer begins anew") == 1
