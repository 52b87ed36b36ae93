"""After its last step a node waits until its peers have made as many, and follows them meanwhile."""

from __future__ import annotations

import importlib
import itertools
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import DaemonLost, TrainerError
from p2psgd.client.link import Link
from p2psgd.ipc.client import ControlClient
from tests import DEADLINE_S
from tests.ipc.daemons import Daemon, StartDaemon, make_update, make_words, wait_until
from tests.ipc.rings import DenseRing, Ring
from tests.torch.models import WEIGHTS, flat, make_model, take_gradient
from tests.torch.needed import p2psgd_torch, torch
from tests.torch.test_in_rings import open_to

pytestmark = pytest.mark.long

SCALE = make_words(np.array([0]), np.array([0]))  # the first weight grows
ONE = 1 << 20  # in quanta


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def make_steps(model: Any, optimizer: Any, count: int) -> None:
    for number in range(count):
        take_gradient(model, number)
        optimizer.step()


def peer_makes(daemon: Daemon, steps: int, *, node: int = 7, sequence: int = 1) -> None:
    """An update of a peer that has made this number of steps arrives; it adds 1 to the first weight."""
    header = {"node": node, "steps": steps, "sequence": sequence}
    daemon.peer_update(make_update(SCALE, WEIGHTS, magnitude=ONE, **header))


def test_it_sends_what_is_left_and_follows_its_peers_until_each_has_made_as_many(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with (
        p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=3) as link,
        ThreadPoolExecutor() as pool,
    ):
        peer_makes(daemon, 1)
        peer_makes(daemon, 9, node=8)
        make_steps(model, optimizer, 4)
        assert link.link.steps == 3
        before = float(model.scale.detach())
        waiting = pool.submit(link.wait_for_peers, silence_s=DEADLINE_S)
        wait_until(lambda: link.link.steps == 4, "the fourth step is sent")
        peer_makes(daemon, 3, sequence=2)
        wait_until(lambda: float(model.scale.detach()) > before + 0.5, "the model follows the peer")
        assert not waiting.done()
        peer_makes(daemon, 4, sequence=3)
        assert waiting.result(DEADLINE_S) is True
        assert daemon.trainer_status()["steps"] == link.steps == 4
        replica = torch.tensor(link.link.weights)
        torch.testing.assert_close(flat(model), replica + torch.tensor(link.link.residual), rtol=0, atol=1e-6)
    daemon.take_all()
    np.testing.assert_array_equal(flat(model), daemon.weights())


def test_a_last_step_is_announced_where_the_parameters_round_what_the_residual_holds(daemon: Daemon) -> None:
    """A weight that a peer has moved over a power of two is rounded by half a quantum in the parameters."""
    quantum = 2.0**-20
    model = make_model()
    with torch.no_grad():
        model.scale.fill_(8 - 4 * quantum)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with p2psgd_torch.attach(
        model, optimizer, control=daemon.path, tau=5 * quantum, local_steps=1, run_horizon=False
    ) as link:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        model.scale.grad.fill_(-3.5 * quantum)
        optimizer.step()
        daemon.take_all()
        assert link.link.residual[0] == 3.5 * quantum
        daemon.peer_update(make_update(SCALE, WEIGHTS, magnitude=9))
        link.link.receive()
        assert float(model.scale.detach()) - link.link.weights[0] == 3 * quantum
        link.wait_for_peers(wait_s=0.1)
        daemon.take_all()
        assert link._link._announced == link.link.steps == 1


def test_without_an_update_for_long_enough_the_others_have_ended(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        peer_makes(daemon, 1)
        make_steps(model, optimizer, 2)
        assert link.wait_for_peers(silence_s=0.01) is False
        make_steps(model, optimizer, 1)  # training may go on
        assert link.steps == 3


@pytest.mark.parametrize(("steps", "reached"), [(None, False), (2, True), (3, False), (0, True)])
def test_it_waits_for_as_many_steps_as_it_is_given(
    daemon: Daemon, steps: int | None, *, reached: bool
) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        make_steps(model, optimizer, 5)
        peer_makes(daemon, 2)
        assert link.wait_for_peers(steps, silence_s=0) is reached


def test_without_peers_there_is_nobody_to_wait_for(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=3) as link:
        make_steps(model, optimizer, 2)
        assert link.wait_for_peers(silence_s=0) is True
        assert link.link.steps == 2


def test_steps_that_were_added_up_count_before_they_are_sent(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        daemon.call(daemon.server.session.show_links, busy=True)
        make_steps(model, optimizer, 5)
        assert (link.steps, link.link.steps) == (5, 0)
        peer_makes(daemon, 5)
        assert link.wait_for_peers(silence_s=0) is True
        assert link.link.steps == 5


def test_peers_hear_of_last_steps_that_have_sent_nothing(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, tau=1e4) as link:
        make_steps(model, optimizer, 3)
        daemon.take_all()
        assert daemon.host.updates == []  # the residual has it all
        peer_makes(daemon, 3)
        assert link.wait_for_peers(silence_s=0) is True
        assert link.wait_for_peers(silence_s=0) is True
        daemon.take_all()
        assert [(made.steps, len(made.words)) for made in daemon.host.updates] == [(3, 1)]
        assert link.steps == 3


def test_peers_hear_of_what_a_trainer_before_this_one_has_not_sent(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, tau=1e4) as link:
        make_steps(model, optimizer, 3)
        daemon.take_all()
        link.close(finished=False)
    again = make_model()
    with p2psgd_torch.attach(again, sgd(again), control=daemon.path, tau=1e4) as link:
        peer_makes(daemon, 3)
        assert link.wait_for_peers(silence_s=0) is True
        daemon.take_all()
        assert [made.steps for made in daemon.host.updates] == [3]


def test_a_step_that_cannot_be_sent_is_reported(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=3) as link:
        make_steps(model, optimizer, 1)
        with torch.no_grad():
            model.scale.fill_(torch.nan)
        with pytest.raises(TrainerError, match="has made 'scale' NaN"):
            link.wait_for_peers()


@pytest.mark.parametrize(
    ("payload", "make_ring"), [("sparse", Ring), ("dense", partial(DenseRing, weights=WEIGHTS))]
)
def test_in_a_ring_all_have_made_as_many_already(
    start_daemon: StartDaemon, payload: str, make_ring: Callable[..., Ring]
) -> None:
    ring = make_ring([start_daemon(1)])
    model = make_model()
    optimizer = sgd(model)
    with ThreadPoolExecutor() as pool:
        options = {"mode": "ring", "payload": payload, "control": ring.daemons[0].path}
        attached = pool.submit(p2psgd_torch.attach, model, optimizer, **options)
        open_to(ring)
    with attached.result(DEADLINE_S) as link:
        make_steps(model, optimizer, 2)
        assert link.wait_for_peers(1000, silence_s=0) is True
        assert ring.rounds == 2
        np.testing.assert_array_equal(flat(model), link.link.weights)


def test_a_daemon_that_wants_the_training_to_end_ends_the_wait(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path) as link:
        peer_makes(daemon, 1)
        make_steps(model, optimizer, 2)
        with ControlClient(daemon.path) as client:
            client.request("finish")
        waits, wait = itertools.count(1), link.link.wait

        def counted(timeout_s: float) -> bool:
            assert next(waits) < 100, "it asks again and again, with a core of its own"
            return bool(wait(timeout_s))

        monkeypatch.setattr(link._link, "wait", counted)
        assert link.wait_for_peers(silence_s=DEADLINE_S) is False


def test_a_step_that_failed_takes_the_unsent_ones_with_it_as_in_close(daemon: Daemon) -> None:
    fails = False

    def fail_after_the_change(*_: object) -> None:
        if fails:
            raise OverflowError

    model = make_model()
    optimizer = sgd(model)
    optimizer.register_step_post_hook(fail_after_the_change)  # before those of attach
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=3) as link:
        start = flat(model)
        make_steps(model, optimizer, 1)
        fails = True
        with pytest.raises(OverflowError):
            make_steps(model, optimizer, 1)
        link.wait_for_peers()
        made = torch.tensor(link.link.weights) + torch.tensor(link.link.residual)
        torch.testing.assert_close(made, start, rtol=0, atol=1e-6)


def test_the_steps_of_the_run_are_those_of_all_nodes(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, local_steps=3) as link:
        make_steps(model, optimizer, 4)
        assert link.run_steps == 4
        peer_makes(daemon, 7)
        peer_makes(daemon, 5, node=8)
        link.link.receive()
        assert link.run_steps == 16


def test_what_an_earlier_incarnation_of_this_node_made_is_no_peers(daemon: Daemon) -> None:
    model = make_model()
    with p2psgd_torch.attach(model, sgd(model), control=daemon.path) as link:
        peer_makes(daemon, 50, node=link.link.node_id)
        peer_makes(daemon, 3, node=link.link.node_id + 1)
        link.link.receive()
        assert link.run_steps == 3


def test_a_trainer_whose_steps_only_add_up_notices_that_the_daemon_is_gone(daemon: Daemon) -> None:
    model = make_model()
    optimizer = sgd(model)
    link = p2psgd_torch.attach(model, optimizer, control=daemon.path)
    make_steps(model, optimizer, 1)
    daemon.call(daemon.server.session.show_links, busy=True)
    daemon.stop()
    with pytest.raises(DaemonLost):
        make_steps(model, optimizer, 3)
    link.close()


def test_closing_waits_as_long_as_the_peers_need_that_are_linked(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("p2psgd.torch.last_steps")
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    monkeypatch.setattr(module, "SILENCE_UNLINKED_S", 0.1)
    monkeypatch.setattr(module, "SAID_AFTER_S", 0.1)
    model = make_model()
    optimizer = sgd(model)
    link = p2psgd_torch.attach(model, optimizer, control=daemon.path)
    make_steps(model, optimizer, 4)
    assert link.link.longest_gap_s(7) == 0.0
    for number, pause_s in ((1, 0.0), (2, 0.8), (3, 0.1)):
        time.sleep(pause_s)
        peer_makes(daemon, number, sequence=number)
        assert link.link.receive()
    gap_s = link.link.longest_gap_s(7)
    assert gap_s >= 0.8
    monkeypatch.setattr(Link, "linked_peers", lambda _: {7, 9})
    assert module.silence_limit_s(link.link, [7, 8]) == 2 * gap_s
    assert module.silence_limit_s(link.link, [8, 9]) == 0.5
    assert module.silence_limit_s(link.link, [8]) == 0.1
    begun = time.monotonic()
    link.close()
    assert time.monotonic() - begun >= 2 * gap_s
    said = capsys.readouterr().err
    assert "waiting for the last steps of 1 peer, until none comes for 2 s, 3600 s at most" in said
    assert re.search(
        r"1 peer may have more steps to make, and sent nothing for \d s: this node goes on", said
    )
    np.testing.assert_array_equal(flat(model), daemon.weights())


@pytest.mark.parametrize("options", [{"wait_s": 0.3}, {"silence_s": 0.3}])
def test_others_that_go_on_do_not_make_a_wait_for_those_behind_longer(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, options: dict[str, float]
) -> None:
    monkeypatch.setattr(importlib.import_module("p2psgd.torch.last_steps"), "TURN_S", 0.05)
    model = make_model()
    optimizer = sgd(model)
    with (
        p2psgd_torch.attach(model, optimizer, control=daemon.path) as link,
        ThreadPoolExecutor() as pool,
    ):
        make_steps(model, optimizer, 3)
        peer_makes(daemon, 1)
        waiting = pool.submit(link.wait_for_peers, **options)
        for number in itertools.count(4):
            peer_makes(daemon, number, node=8, sequence=number - 3)
            if waiting.done():
                break
            time.sleep(0.02)
        assert waiting.result() is False


def test_an_error_of_the_script_waits_for_nobody(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("p2psgd.torch.last_steps"), "SILENCE_UNLINKED_S", DEADLINE_S)
    model = make_model()
    optimizer = sgd(model)

    def fail() -> None:
        with p2psgd_torch.attach(model, optimizer, control=daemon.path):
            make_steps(model, optimizer, 2)
            peer_makes(daemon, 1)
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        fail()
    another = make_model()
    p2psgd_torch.attach(another, sgd(another), control=daemon.path).close(finished=False)
