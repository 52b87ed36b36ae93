from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests.ipc.daemons import ZEROS, Daemon, LoopFactory, StartDaemon


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    return asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop


@pytest.fixture
def start_daemon(tmp_path: Path, loop_factory: LoopFactory) -> Iterator[StartDaemon]:
    """Start daemons with their state in `tmp_path`/node; all are stopped, and their faults raised, at the
    end.
    """
    daemons: list[Daemon] = []

    def start(node: int = 1, **options: Any) -> Daemon:
        state = tmp_path / str(node)
        state.mkdir(exist_ok=True)
        daemons.append(Daemon(state, loop_factory, node, **options))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    return start_daemon()


@pytest.fixture
def link_options() -> dict[str, str]:
    """Of `attach`, for `link`; a file of tests may have others."""
    return {}


@pytest.fixture
def link(daemon: Daemon, link_options: dict[str, Any]) -> Iterator[Link]:
    """The daemon's trainer."""
    with attach(ZEROS, control=daemon.path, **link_options) as link:
        yield link
