from __future__ import annotations

import socket

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.cli.local import cluster


def test_ports_are_distinct_and_never_those_of_outgoing_connections() -> None:
    low = int(cluster.OUTGOING_RANGE.read_text().split()[0])
    found = cluster.free_ports(64)
    assert len(set(found)) == 64
    assert low < cluster.PORT_LOW + 1_000 or max(found) < low


def test_a_port_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind((cluster.LOOPBACK, 0))
        listener.listen()
        taken = listener.getsockname()[1]
        monkeypatch.setattr(cluster, "PORT_LOW", taken)
        monkeypatch.setattr(cluster, "_outgoing_low", lambda: taken + 1)
        with pytest.raises(UsageError, match="only 0 of 1 loopback ports"):
            cluster.free_ports(1)
