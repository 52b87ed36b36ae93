"""The quantum of a PyTorch run: a smaller one sends smaller changes, and leaves less room for weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p2psgd.base.errors import TrainerError
from tests.ipc.daemons import Daemon, StartDaemon, make_update, make_words
from tests.ipc.rings import Ring
from tests.torch.needed import nn, p2psgd_torch, torch
from tests.torch.test_in_rings import open_to

pytestmark = pytest.mark.long

SMALL = 2.0**-24


def small_net() -> Any:
    """Its weights are within +-0.25."""
    torch.manual_seed(1)
    return nn.Linear(16, 8)


def step(model: Any, optimizer: Any, change: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, -change)
    optimizer.step()


@pytest.mark.parametrize(("quantum", "sent"), [(2.0**-20, 0), (SMALL, 136)])
def test_changes_below_a_quantum_wait_and_count_for_this_node(
    daemon: Daemon, quantum: float, sent: int
) -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"tau": 1e-9, "quantum": quantum, "run_horizon": False}
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, **options) as link:
        before = link.link.weights.copy()
        for _ in range(4):
            step(model, optimizer, 3 * SMALL / 2)
        total = link.link.weights.astype(np.float64) - before + link.link.residual
        np.testing.assert_allclose(total, 6 * SMALL, rtol=1e-3)
        np.testing.assert_allclose(np.asarray(model.bias.detach()), (before + total)[-8:], rtol=1e-6)
        assert sum(link.link.sent.values()) == sent
        daemon.take_all()
        assert daemon.host.proposal is not None
        assert 2.0**daemon.host.proposal.quantum_log2 == quantum


def test_peers_updates_of_a_small_quantum_are_applied_exactly(daemon: Daemon) -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with p2psgd_torch.attach(model, optimizer, control=daemon.path, quantum=SMALL) as link:
        before = link.link.weights.copy()
        words = make_words(np.array([3]), np.array([1]))
        daemon.peer_update(make_update(words, before.size, magnitude=5))
        assert link.link.receive() == 1
        assert link.link.weights[3] == before[3] - 5 * SMALL


def test_a_sparse_ring_has_the_same_weights_at_all_nodes_with_a_small_quantum(
    start_daemon: StartDaemon,
) -> None:
    ring = Ring([start_daemon(1), start_daemon(2)])
    models = [small_net() for _ in ring.daemons]

    def train(place: int) -> Any:
        model, control = models[place], ring.daemons[place].path
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        options = {"mode": "ring", "tau": 1e-9, "quantum": SMALL}
        with p2psgd_torch.attach(model, optimizer, control=control, **options) as link:
            before = link.link.weights.copy()
            for _ in range(4):
                step(model, optimizer, (2 + place) * SMALL)
            assert (link.link.weights > before).all()
            return link.link.weights.copy()

    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(train, place) for place in (0, 1)]
        open_to(ring)
        first, second = (each.result(60) for each in waiting)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(("quantum", "weight"), [(2.0**-20, 8.5), (2.0**-22, 2.25), (SMALL, 1.0)])
def test_weights_beyond_half_of_the_range_are_refused_with_what_to_do(
    daemon: Daemon, quantum: float, weight: float
) -> None:
    model = small_net()
    with torch.no_grad():
        model.bias[2] = weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    words = rf"weight 2 of tensor 'bias' is {weight:g}; .* within \+-{2**23 * quantum:g}, .*: take a larger"
    with pytest.raises(TrainerError, match=words):
        p2psgd_torch.attach(model, optimizer, control=daemon.path, quantum=quantum)
