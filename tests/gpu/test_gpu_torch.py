"""A PyTorch model on a device, beside one in the host's memory. With the stand-in for CuPy the tensors are
the host's and only taken for the device's, so what DLPack and streams do shows on a device alone.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.gpu.backends import Backend
from tests.gpu.links import loop_factory, sent_by, start_daemon
from tests.ipc.daemons import StartDaemon, make_update, make_words
from tests.torch.models import WEIGHTS, flat, make_model
from tests.torch.needed import p2psgd_torch, torch

pytestmark = pytest.mark.long

__all__ = ["loop_factory", "start_daemon"]  # fixtures


@pytest.fixture
def there(gpu: Backend, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a model is to be, so that its link is on the device."""
    if gpu.name == "device":
        return "cuda"
    arrays = importlib.import_module("p2psgd.torch.arrays")
    attaching = importlib.import_module("p2psgd.torch.attach")  # the package's `attach` is the function
    monkeypatch.setattr(attaching, "arrays_of", lambda _: arrays.DeviceArrays(torch.device("cuda:0")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    return "cpu"


def attach(place: str, daemon: Any) -> tuple[Any, Any, Any]:
    """Model, optimizer and link; a change is exact, so that all processors make the same one."""
    model = make_model().to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    return model, optimizer, p2psgd_torch.attach(model, optimizer, tau=0.5, control=daemon.path)


def step(model: Any, optimizer: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for parameter in model.parameters():
        numbers = draw.integers(-512, 513, tuple(parameter.shape)) / np.float32(1024)
        parameter.grad = torch.tensor(numbers, dtype=torch.float32, device=parameter.device)
    optimizer.step()


def test_a_model_on_a_device_sends_the_same_bytes_as_on_the_host_and_has_the_same_weights(
    start_daemon: StartDaemon, gpu: Backend, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    model, optimizer, link = attach(there, daemons[0])
    attaching, arrays = map(importlib.import_module, ("p2psgd.torch.attach", "p2psgd.torch.arrays"))
    monkeypatch.setattr(attaching, "arrays_of", arrays.arrays_of)
    other, its_optimizer, its_link = attach("cpu", daemons[1])
    with link, its_link:
        assert isinstance(link.link.weights, gpu.cupy.ndarray)
        assert isinstance(its_link.link.weights, np.ndarray)
        for number in range(8):
            words = make_words(np.array([number, 2 * number + 20]), np.array([0, 1]))
            for daemon in daemons:
                daemon.peer_update(make_update(words, WEIGHTS, sequence=number + 1, magnitude=1000))
            step(model, optimizer, number)
            step(other, its_optimizer, number)
            assert torch.equal(flat(model).cpu(), flat(other))
            np.testing.assert_array_equal(link.link.residual.get(), its_link.link.residual)
        sent = sent_by(daemons[0])
        assert sent == sent_by(daemons[1])
        assert len(sent) > 4
        np.testing.assert_array_equal(link.link.weights.get(), daemons[0].weights())
        point = its_link.link.weights + its_link.link.residual
        np.testing.assert_array_equal(flat(model).cpu(), point)


def test_a_first_node_gives_the_weights_of_a_model_on_a_device(
    start_daemon: StartDaemon, gpu: Backend, there: str
) -> None:
    daemon = start_daemon(1)
    daemon.host.rank_value = (0, 1)
    model = make_model().to(there)
    wanted = flat(model).clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with p2psgd_torch.attach(model, optimizer, tau=0.5, initial="first", control=daemon.path) as link:
        assert isinstance(link.link.weights, gpu.cupy.ndarray)
        assert (flat(model) - wanted).abs().max() <= link.link.quantum
        assert link.steps == 0
