"""A link whose weights and residual are on a device, beside one in the host's memory."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from p2psgd.errors import TrainerError
from p2psgd.trainer.attaching import attach
from p2psgd.trainer.link import Link
from p2psgd.wire import codec
from tests.gpu.backends import Backend
from tests.ipc.conftest import start_daemon
from tests.ipc.daemons import QUANTUM, Daemon, LoopFactory, StartDaemon, make_update, make_words
from tests.ipc.doomed_trainer import delta_of

__all__ = ["start_daemon"]  # a fixture

TENSORS = {"in": (70, 40), "bias": (70,), "scale": (), "out": (29, 3)}
SIZES = [2800, 70, 1, 87]
WEIGHTS = sum(SIZES)
STEPS: list[int | dict[str, int]] = [
    8,
    {"in": 8, "bias": 3, "scale": 8, "out": 5},
    {"in": 9, "bias": 9, "scale": 1, "out": 9},
    1,
]
Attach = Callable[..., Link]


@pytest.fixture
def loop_factory() -> LoopFactory:
    return asyncio.new_event_loop


@pytest.fixture
def attach_gpu(gpu: Backend) -> Iterator[Attach]:
    """p2psgd.gpu.attach; the links are closed at the end."""
    links: list[Link] = []

    def attach(*arguments: Any, **options: Any) -> Link:
        links.append(importlib.import_module("p2psgd.gpu").attach(*arguments, **options))
        return links[-1]

    yield attach
    for link in links:
        link.close()


def initial() -> dict[str, NDArray[np.float32]]:
    draw = np.random.default_rng(5)
    return {name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in TENSORS.items()}


def test_the_same_deltas_make_the_same_bytes_weights_and_residuals_as_on_the_host(
    start_daemon: StartDaemon, gpu: Backend, attach_gpu: Attach
) -> None:
    daemons = [start_daemon(1), start_daemon(2)]
    there: Any = attach_gpu(initial(), control=daemons[0].path)
    with attach(initial(), control=daemons[1].path) as here:
        np.testing.assert_array_equal(there.weights.get(), here.weights)
        for number in range(12):
            delta, step = delta_of(number, WEIGHTS), STEPS[number % len(STEPS)]
            assert there.send(gpu.cupy.asarray(delta), step) == here.send(delta, step)
            assert there.sent == here.sent
            np.testing.assert_array_equal(there.weights.get(), here.weights)
            np.testing.assert_array_equal(there.residual.get(), here.residual)
            for name, tensor in here.tensors.items():
                np.testing.assert_array_equal(there.tensors[name].get(), tensor)
        for daemon in daemons:
            daemon.take_all()
        ours, theirs = (
            [(update.mini_batch, update.step, bytes(update.payload)) for update in daemon.host.updates]
            for daemon in daemons
        )
        assert ours == theirs
        assert len(ours) > 12
