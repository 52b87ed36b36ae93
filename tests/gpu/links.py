"""Links on a device and their daemons, for tests."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.gpu.backends import Backend
from tests.ipc.conftest import start_daemon
from tests.ipc.daemons import Daemon, LoopFactory

__all__ = ["attach_gpu", "loop_factory", "start_daemon"]  # fixtures

TENSORS = {"in": (70, 40), "bias": (70,), "scale": (), "out": (29, 3)}
WEIGHTS = 2800 + 70 + 1 + 87
Attach = Callable[..., Any]  # p2psgd.gpu.attach; a link whose arrays are the device's


def initial() -> dict[str, NDArray[np.float32]]:
    draw = np.random.default_rng(5)
    return {name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in TENSORS.items()}


@pytest.fixture
def loop_factory() -> LoopFactory:
    return asyncio.new_event_loop


@pytest.fixture
def attach_gpu(gpu: Backend) -> Iterator[Attach]:
    """Links that are closed at the end; `gpu` is in use until then."""
    links: list[Any] = []

    def attach(*arguments: Any, **options: Any) -> Any:
        links.append(importlib.import_module("p2psgd.gpu").attach(*arguments, **options))
        return links[-1]

    yield attach
    for link in links:
        link.close()


def die(link: Any, daemon: Daemon) -> None:
    """End without a word, as a killed process would."""
    link._client.close()
    link._closed = True
    daemon.until(lambda: bool(daemon.host.left), "the trainer's end is seen")


def sent_by(daemon: Daemon) -> list[tuple[int, int, bytes]]:
    """Mini-batch, step and bytes of all updates that the daemon was given."""
    daemon.take_all()
    return [(update.steps, update.magnitude, bytes(update.payload)) for update in daemon.host.updates]
