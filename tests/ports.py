"""Ports of loopback that nobody listens on just now, and that no outgoing connection is given."""

from __future__ import annotations

import itertools
import os
import random

from p2psgd.cli.local import cluster

WORKERS_MAX = 16  # of pytest-xdist: each has ports of its own


def _own_ports() -> list[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    ports = cluster.ports_to_listen_on()[worker::WORKERS_MAX]
    random.SystemRandom().shuffle(ports)
    return ports


# One after the other: a port that was given out is not given to another test that starts meanwhile.
_NEXT = itertools.cycle(_own_ports())


def free_ports(count: int) -> list[int]:
    """Return this number of distinct ports."""
    return cluster.free_ports(count, among=itertools.islice(_NEXT, WORKERS_MAX * count))
