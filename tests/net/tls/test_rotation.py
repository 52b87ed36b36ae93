"""Fault 26: certificates are renewed under two running daemons, which find them and stay linked."""

from __future__ import annotations

import signal
import socket
from datetime import timedelta
from pathlib import Path

from tests import DEADLINE_S
from tests.certificates import NOW, Certificates
from tests.chaos.events import read
from tests.daemons import Daemon, all_stopped, until
from tests.node.test_node import Place, calm, endless, steps


def shown(certificates: Certificates, port: int) -> object:
    """The serial number of the certificate that a daemon shows now."""
    context = certificates.client("stranger-1", node=1)
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)) as connected:
        return (connected.getpeercert() or {})["serialNumber"]


def told(daemon: Daemon, kind: str) -> list[str]:
    return [event.words for event in read(daemon.state) if event.kind == kind]


def test_fault_26_new_links_use_what_was_renewed_and_old_ones_live_on(tmp_path: Path) -> None:
    certificates, place = Certificates(tmp_path), Place(tmp_path, 2)
    options = [certificates.options(f"node-{number}") for number in range(2)]
    with all_stopped([place.start(n, *endless(calm(tmp_path)), *options[n]) for n in range(2)]) as daemons:
        until(lambda: daemons[0].linked() == {"node-1"}, "linked")
        before = [shown(certificates, port) for port in place.ports]
        soon = NOW + timedelta(days=10)
        for name in ("node-0", "node-1"):
            certificates.authority.issue(name, now=NOW, days=10, renew=True)
        until(lambda: all(told(daemon, "certificate") for daemon in daemons), "both have found the new ones")
        after = [shown(certificates, port) for port in place.ports]
        assert not set(before) & set(after)
        for daemon in daemons:
            until(lambda: told(daemon, "alarm"), "a certificate of ten days is warned of")  # noqa: B023
            [alarm] = told(daemon, "alarm")
            assert alarm.startswith(f"this node's certificate expires on {soon:%Y-%m-%d}")
            status = daemon.status() or {}
            assert status["tls"]["expires"][:10] == f"{soon:%Y-%m-%d}"
            assert status["tls"]["trouble"]

        (place.path / "ca-tested/nodes/node-0/node.key").write_text("no key")
        daemons[0].process.send_signal(signal.SIGHUP)
        until(lambda: len(told(daemons[0], "alarm")) == 2, "what cannot be used is told")
        assert "the old ones stay in use" in told(daemons[0], "alarm")[1]
        assert [shown(certificates, port) for port in place.ports] == after
        certificates.authority.issue("node-0", now=NOW, renew=True)
        until(lambda: len(told(daemons[0], "certificate")) == 2, "what was mended is found")
        status = daemons[0].status() or {}
        assert status["alarms"] == []
        assert status["tls"]["trouble"] == ""

        made = steps(daemons[1])
        until(lambda: steps(daemons[1]) > made + 20, "they train on")
        lost = [words for daemon in daemons for words in told(daemon, "lost")]
        assert [words for words in lost if "another connection between these two nodes" not in words] == []
        assert daemons[0].linked() == {"node-1"}
