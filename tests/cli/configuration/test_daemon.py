"""A real daemon that a file and the environment tell what to be."""

from __future__ import annotations

from pathlib import Path

from p2psgd.base.errors import ExitCode
from tests import DEADLINE_S
from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports


def test_a_daemon_is_what_its_file_and_its_environment_say(tmp_path: Path) -> None:
    listen, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hosts.txt").write_text(f"{listen}\n")
    file = tmp_path / "etc" / "node.toml"
    file.write_text(f'peers = "hosts.txt"\nlisten = "{listen}"\nhttp = "127.0.0.1:1"\n')
    environment = {"P2PSGD_CONFIG": str(file), "P2PSGD_HTTP": http}
    with all_stopped([Daemon(tmp_path / "node-0", environment=environment)]) as (daemon,):
        until(daemon.status, "it answers")
        status = daemon.status()
        assert status is not None
        assert (status["listen"], status["http"]["address"]) == (listen, http)
        assert daemon.stop() == ExitCode.OK


def test_a_daemon_with_a_wrong_file_ends_with_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('peers = "hosts.txt"\nfailure_timeout = 900\n')
    daemon = Daemon(tmp_path / "node-0", "--config", str(file))
    assert daemon.process.wait(DEADLINE_S) == ExitCode.CONFIGURATION
    words = (
        f"in {file}, failure_timeout: --failure-timeout: the failure timeout must be 0.2 to 600 s, not 900"
    )
    assert daemon.words() == f"p2psgd: {words}\n"
