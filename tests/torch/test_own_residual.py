"""A node trains at the replica plus its own residual, so that what it has not sent yet counts for itself."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import Daemon, make_update, make_words
from tests.torch.models import WEIGHTS, flat, make_model, take_gradient
from tests.torch.needed import p2psgd_torch, torch

pytestmark = pytest.mark.long


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def momentum(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def point(link: Any) -> Any:
    return torch.tensor(link.link.weights) + torch.tensor(link.link.residual)


def test_one_node_alone_trains_as_without_p2psgd(daemon: Daemon) -> None:
    """To the last bit: what is sent moves from the residual to the replica, and the parameters stay."""
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = adam(model), adam(plain)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, density=0.01, run_horizon=False) as link:
        plain.load_state_dict(model.state_dict())  # in whole quanta
        for number in range(40):
            for each, stepped in ((model, optimizer), (plain, plain_optimizer)):
                take_gradient(each, number)
                stepped.step()
            torch.testing.assert_close(flat(model), flat(plain), rtol=0, atol=0)
            torch.testing.assert_close(flat(model), point(link), rtol=0, atol=1e-6)
        assert float(abs(torch.tensor(link.link.residual)).max()) > 1e-2, "most of it has not been sent"


def test_peers_move_the_point_and_the_residual_stays(daemon: Daemon) -> None:
    model = make_model()
    optimizer = adam(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        take_gradient(model, 0)
        optimizer.step()
        residual, before = torch.tensor(link.link.residual), model.scale.item()
        words = make_words(np.array([0]), np.array([0]))  # the scale
        daemon.peer_update(make_update(words, WEIGHTS, magnitude=1 << 20))
        link.link.receive()
        assert model.scale.item() == pytest.approx(before + 1)
        assert torch.equal(torch.tensor(link.link.residual), residual)
        torch.testing.assert_close(flat(model), point(link), rtol=0, atol=1e-6)


@pytest.mark.parametrize("interrupted", [False, True])
def test_weights_that_are_fetched_anew_keep_what_was_not_sent(daemon: Daemon, *, interrupted: bool) -> None:
    model = make_model()
    optimizer = adam(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, density=0.01) as link:
        take_gradient(model, 0)
        optimizer.step()
        daemon.take_all()
        residual = np.array(link.link.residual)
        daemon.peer_update(make_update(make_words(np.array([3]), np.array([0])), WEIGHTS, magnitude=1 << 20))
        link._link._exact = False  # as after an interrupted call
        link._whole = not interrupted
        link.link.receive()
        np.testing.assert_array_equal(link.link.weights, daemon.weights())
        np.testing.assert_allclose(flat(model), daemon.weights() + residual, rtol=0, atol=1e-6)


def test_a_wrong_copy_that_is_mended_leaves_the_parameters_as_they_were(daemon: Daemon) -> None:
    model = make_model()
    optimizer = adam(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, density=0.1) as link:
        take_gradient(model, 0)
        optimizer.step()
        daemon.take_all()
        before = flat(model).clone()
        link._link._compute._replica[3] += 0.5  # as of a flipped bit
        link._link._keeping.given = True  # then the digest is asked for
        link._follow()
        np.testing.assert_array_equal(link.link.weights, daemon.weights())
        torch.testing.assert_close(flat(model), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("goes_on_by", ["step", "wait_for_peers"])
def test_a_change_whose_send_was_interrupted_counts_once(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, goes_on_by: str
) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with p2psgd_torch.attach(
        model, optimizer, control=daemon.path, local_steps=2, density=0.1, run_horizon=False
    ) as link:
        take_gradient(model, 0)
        optimizer.step()
        wanted = flat(model).clone()

        def interrupt(sent: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(link._link._compute, "apply_sent", interrupt)
            with pytest.raises(KeyboardInterrupt):
                link.wait_for_peers(wait_s=0.1)
        daemon.take_all()
        if goes_on_by == "wait_for_peers":
            link.wait_for_peers(wait_s=0.1)
        for group in optimizer.param_groups:
            group["lr"] = 1e-9
        for number in range(200):
            take_gradient(model, number)
            optimizer.step()
            daemon.take_all()
        torch.testing.assert_close(flat(model), wanted, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.tensor(daemon.weights()), wanted, rtol=0, atol=1e-2)


def test_local_steps_stay_in_the_parameters_while_peers_move_them(daemon: Daemon) -> None:
    model = make_model()
    optimizer = momentum(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=10) as link:
        for number in range(3):
            take_gradient(model, number)
            optimizer.step()
        before = flat(model).clone()
        daemon.peer_update(make_update(make_words(np.array([0]), np.array([0])), WEIGHTS, magnitude=1 << 20))
        link.link.receive()
        before[0] += 1
        torch.testing.assert_close(flat(model), before, rtol=0, atol=1e-6)


def test_local_steps_stay_in_the_parameters_when_the_inbox_was_too_small(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    optimizer = momentum(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=10) as link:
        take_gradient(model, 0)
        optimizer.step()
        before = flat(model).clone()
        daemon.peer_update(make_update(make_words(np.array([0]), np.array([0])), WEIGHTS, magnitude=1 << 20))
        with monkeypatch.context() as patch:
            patch.setattr(type(link._link._memory), "reload_wanted", True)
            link.link.receive()
        np.testing.assert_array_equal(link.link.weights, daemon.weights())
        before[0] += 1
        torch.testing.assert_close(flat(model), before, rtol=0, atol=1e-6)


def test_at_its_end_the_model_has_the_weights_that_all_nodes_share(daemon: Daemon) -> None:
    model = make_model()
    optimizer = adam(model)
    link = p2psgd_torch.attach(model, optimizer, control=daemon.path)
    take_gradient(model, 0)
    optimizer.step()
    daemon.take_all()
    assert not np.array_equal(flat(model), daemon.weights())
    link.close()
    np.testing.assert_array_equal(flat(model), daemon.weights())
    before = copy.deepcopy(flat(model))
    take_gradient(model, 1)
    optimizer.step()
    assert not torch.equal(flat(model), before), "the optimizer is an ordinary one again"


def test_without_it_the_model_has_the_weights_of_the_replica_after_each_step(daemon: Daemon) -> None:
    model = make_model()
    optimizer = adam(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, own_residual=False):
        for number in range(3):
            take_gradient(model, number)
            optimizer.step()
            daemon.take_all()
            np.testing.assert_array_equal(flat(model), daemon.weights())


def test_after_an_error_of_the_script_no_state_is_kept(daemon: Daemon) -> None:
    model = make_model()
    optimizer = adam(model)
    with (  # noqa: PT012 (what is raised is what is tested)
        pytest.raises(TrainerError, match="NaN"),
        p2psgd_torch.attach(model, optimizer, control=daemon.path),
    ):
        take_gradient(model, 0)
        model.scale.grad.fill_(torch.nan)
        daemon.call(daemon.server.session.request_state)  # which the next receive would answer
        optimizer.step()
    daemon.until(lambda: bool(daemon.host.left), "the trainer has left")
    assert not any(state.script for state in daemon.host.states)


def test_a_failing_device_does_not_hide_the_error_of_the_script(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()

    def fails() -> None:
        raise RuntimeError("the device is gone")

    with (  # noqa: PT012 (what is raised is what is tested)
        pytest.raises(ValueError, match="of the script"),
        p2psgd_torch.attach(model, adam(model), control=daemon.path) as link,
    ):
        monkeypatch.setattr(link, "_undo", fails)
        raise ValueError("of the script")
    assert link._hooks == []
    with pytest.raises(Exception, match="closed"):
        link.link.receive()
