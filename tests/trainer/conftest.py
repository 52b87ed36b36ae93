from __future__ import annotations

from collections.abc import Iterator

import pytest

from p2psgd.trainer.attaching import attach
from p2psgd.trainer.link import Link
from tests.ipc.conftest import daemon, loop_factory, start_daemon
from tests.ipc.daemons import ZEROS, Daemon

__all__ = ["daemon", "loop_factory", "start_daemon"]  # fixtures


@pytest.fixture
def link(daemon: Daemon) -> Iterator[Link]:
    with attach(ZEROS, control=daemon.path) as link:
        yield link
