from __future__ import annotations

from collections.abc import Iterator

import pytest

from p2psgd.client.link import Link
from tests.client.dense_links import WEIGHTS, follow
from tests.ipc.conftest import daemon, link, link_options, loop_factory, start_daemon
from tests.ipc.daemons import Daemon, StartDaemon
from tests.ipc.rings import DenseRing

__all__ = ["daemon", "link", "link_options", "loop_factory", "start_daemon"]  # fixtures


@pytest.fixture
def pair(start_daemon: StartDaemon) -> Iterator[tuple[DenseRing, Link, Link]]:
    """Two nodes of a dense ring whose first round is open."""
    daemons = [start_daemon(1), start_daemon(2)]
    ring = DenseRing(daemons, WEIGHTS)
    with follow(daemons[0]) as first, follow(daemons[1]) as second:
        ring.open()
        yield ring, first, second


@pytest.fixture
def alone(daemon: Daemon) -> Iterator[tuple[DenseRing, Link]]:
    """A dense ring of one node."""
    ring = DenseRing([daemon], WEIGHTS)
    with follow(daemon) as link:
        ring.open()
        link.receive()
        yield ring, link
