"""Several steps are sent together: what they have made adds up in the parameters until then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX
from tests.ipc.daemons import Daemon, StartDaemon, make_update, make_words
from tests.ipc.rings import DenseRing, Ring
from tests.torch.models import WEIGHTS, flat, make_model, take_gradient
from tests.torch.needed import nn, p2psgd_torch, torch
from tests.torch.test_in_rings import open_to, trained

pytestmark = pytest.mark.long

LOCAL_STEPS = 3


def momentum(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def attach(daemon: Daemon, model: Any, optimizer: Any, **options: Any) -> Any:
    return p2psgd_torch.attach(
        model, optimizer, control=daemon.path, local_steps=LOCAL_STEPS, run_horizon=False, **options
    )


def step(model: Any, optimizer: Any, number: int) -> None:
    take_gradient(model, number)
    optimizer.step()


@pytest.mark.parametrize("own_residual", [True, False])
def test_every_third_step_sends_what_three_have_made(daemon: Daemon, *, own_residual: bool) -> None:
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = momentum(model), momentum(plain)
    with attach(daemon, model, optimizer, own_residual=own_residual) as link:
        for number in range(2):
            step(model, optimizer, number)
            step(plain, plain_optimizer, number)
            assert (link.steps, link.link.steps) == (number + 1, 0)
            torch.testing.assert_close(flat(model), flat(plain), rtol=0, atol=1e-6)
            assert not torch.tensor(link.link.residual).any()
        step(model, optimizer, 2)
        step(plain, plain_optimizer, 2)
        assert (link.steps, link.link.steps) == (3, 3)
        made = torch.tensor(link.link.weights) + torch.tensor(link.link.residual)
        torch.testing.assert_close(made, flat(plain), rtol=0, atol=1e-6)
        expected = made if own_residual else torch.tensor(link.link.weights)
        torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-6)


def test_what_arrives_moves_the_parameters_and_what_is_not_sent_stays(daemon: Daemon) -> None:
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = momentum(model), momentum(plain)
    with attach(daemon, model, optimizer) as link:
        step(model, optimizer, 0)
        step(plain, plain_optimizer, 0)
        words = make_words(np.array([0]), np.array([0]))  # the scale
        daemon.peer_update(make_update(words, WEIGHTS, magnitude=1 << 20))
        link.link.receive()
        link.skip()  # as after a GradScaler has skipped a step
        with torch.no_grad():
            plain.scale += 1
        torch.testing.assert_close(flat(model), flat(plain), rtol=0, atol=1e-6)
        daemon.peer_update(make_update(words, WEIGHTS, magnitude=1 << 20, sequence=2))
        step(model, optimizer, 1)
        step(plain, plain_optimizer, 1)
        with torch.no_grad():
            plain.scale += 1
        torch.testing.assert_close(flat(model), flat(plain), rtol=0, atol=1e-6)
        assert link.steps == 2


def test_at_the_end_what_is_left_is_sent(daemon: Daemon) -> None:
    model = make_model()
    optimizer = momentum(model)
    link = attach(daemon, model, optimizer)
    for number in range(4):
        step(model, optimizer, number)
    link.close()
    assert link.link.steps == 4
    assert link.steps == 4
    daemon.take_all()
    np.testing.assert_array_equal(flat(model), daemon.weights())


def test_the_count_of_steps_survives_a_restart_with_another_number(daemon: Daemon) -> None:
    for local_steps, made, expected in ((1, 20, 20), (5, 1, 21), (5, 7, 28), (1, 1, 29)):
        model = make_model()
        optimizer = momentum(model)
        link = p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=local_steps)
        for number in range(made):
            step(model, optimizer, number)
        assert link.steps == expected
        link.close(finished=False)
        assert link.steps == expected


def test_of_itself_it_sends_when_a_connection_is_free(daemon: Daemon) -> None:
    model = make_model()
    optimizer = momentum(model)
    session = daemon.server.session
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        sent = []
        for number, busy in enumerate((False, True, True, False, False)):
            daemon.call(session.show_links, busy=busy)
            step(model, optimizer, number)
            sent.append(link.link.steps)
        assert sent == [1, 1, 1, 4, 5]
        assert link.steps == 5
        made = torch.tensor(link.link.weights) + torch.tensor(link.link.residual)
        torch.testing.assert_close(flat(model), made, rtol=0, atol=1e-6)


@pytest.mark.parametrize("local_steps", [1, None])
def test_of_itself_it_sends_at_last_and_one_is_always_one(daemon: Daemon, local_steps: int | None) -> None:
    model = make_model()
    optimizer = momentum(model)
    session = daemon.server.session
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=local_steps) as link:
        daemon.call(session.show_links, busy=True)
        for number in range(SEND_STEPS_MAX):
            step(model, optimizer, number)
            assert link.link.steps == (number + 1 if local_steps or number + 1 == SEND_STEPS_MAX else 0)


def test_a_refused_load_takes_the_unsent_steps_with_it(daemon: Daemon) -> None:
    model = make_model()
    optimizer = momentum(model)
    with attach(daemon, model, optimizer) as link:
        start = flat(model)
        step(model, optimizer, 0)
        with pytest.raises(TrainerError, match="load_state_dict would change"):
            model.load_state_dict(model.state_dict())
        assert torch.equal(flat(model), start)
        assert link.steps == 0


def test_a_change_that_cannot_be_sent_at_the_end_is_reported(daemon: Daemon) -> None:
    model = make_model()
    optimizer = momentum(model)
    link = attach(daemon, model, optimizer)
    step(model, optimizer, 0)
    with torch.no_grad():
        model.scale.fill_(torch.nan)
    with pytest.raises(TrainerError, match="has made 'scale' NaN"):
        link.close()
    np.testing.assert_array_equal(flat(model), daemon.weights())


def test_shards_are_refused(daemon: Daemon) -> None:
    model = make_model()
    with pytest.raises(TrainerError, match="local_steps and shards do not go together"):
        attach(daemon, model, momentum(model), shards=object())


def train(ring: Ring, payload: str, rounds: int) -> list[Any]:
    """Train two nodes, each of which skips a step. Return the flat weights and the residual of each."""

    def one(place: int) -> Any:
        model = models[place]
        optimizer = momentum(model)
        with attach(ring.daemons[place], model, optimizer, mode="ring", payload=payload) as link:
            for number in range(rounds * LOCAL_STEPS):
                if number == 1 + place:
                    link.skip()
                else:
                    step(model, optimizer, 10 * number + place)
            residual = None if payload == "dense" else torch.tensor(link.link.residual)
            return flat(model), residual

    models = [make_model(), make_model()]  # here, for the seed is the process's
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(one, place) for place in (0, 1)]
        open_to(ring)
        return [each.result(60) for each in waiting]


def train_plainly(rounds: int) -> Any:
    """The mean of both nodes' weights, with which each goes on after every round."""
    nodes = [(model, momentum(model)) for model in (make_model(), make_model())]
    mean = None
    for number in range(rounds * LOCAL_STEPS):
        for place, (model, optimizer) in enumerate(nodes):
            if number != 1 + place:
                step(model, optimizer, 10 * number + place)
        if (number + 1) % LOCAL_STEPS == 0:
            mean = (flat(nodes[0][0]) + flat(nodes[1][0])) / 2
            for model, _ in nodes:
                nn.utils.vector_to_parameters(mean.clone(), trained(model))  # it takes the memory
    return mean


def test_in_a_dense_ring_each_round_ends_at_the_mean_of_the_nodes(start_daemon: StartDaemon) -> None:
    ring = DenseRing([start_daemon(1), start_daemon(2)], WEIGHTS)
    (first, _), (second, _) = train(ring, "dense", rounds=2)
    assert torch.equal(first, second)
    assert ring.rounds == 2
    torch.testing.assert_close(first, train_plainly(rounds=2), rtol=0, atol=1e-5)


def test_in_a_sparse_ring_weights_and_residuals_add_up_to_the_mean_of_the_nodes(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p2psgd_torch.model_link, "expected_nodes", lambda link: 2)  # the daemons say four
    ring = Ring([start_daemon(1), start_daemon(2)])
    (first, one), (second, other) = train(ring, "sparse", rounds=1)
    assert torch.equal(first, second)
    assert ring.rounds == 1
    assert one.any()
    torch.testing.assert_close(first + one + other, train_plainly(rounds=1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("local_steps", [0, -1, 1.5, "3", 1001])
def test_other_numbers_are_refused(daemon: Daemon, local_steps: Any) -> None:
    model = make_model()
    with pytest.raises(TrainerError, match=r"local_steps .* is refused: give a whole number from 1 to 1,000"):
        p2psgd_torch.attach(model, momentum(model), control=daemon.path, local_steps=local_steps)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_rounded_model_follows_each_local_step(daemon: Daemon, kind: Any) -> None:
    weight = nn.Linear(4, 4, bias=False).to(kind)
    optimizer = torch.optim.SGD(weight.parameters(), lr=2.0**-10)
    plain = weight.weight.detach().float().clone()
    with attach(daemon, weight, optimizer) as link:
        for number in range(1, 2 * LOCAL_STEPS + 1):
            weight.weight.grad = torch.ones_like(weight.weight)
            optimizer.step()
            torch.testing.assert_close(weight.weight.float(), plain - number * 2.0**-10, rtol=0, atol=2.0**-8)
            assert link.steps == number
    assert link.link.steps == 2 * LOCAL_STEPS
