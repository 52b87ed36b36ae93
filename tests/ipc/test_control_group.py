"""A control socket outside the state directory, for a group of users: what systemd's two units need."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2psgd.base.errors import UsageError
from p2psgd.ipc.client import ControlClient
from tests import DEADLINE_S
from tests.ipc.daemons import StartDaemon

GROUP, USER = 64321, 64322

TRAINER = """
import os, sys
import numpy as np
from p2psgd import attach
path, primary, others = sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3:]]
os.setgroups(others)
os.setresgid(primary, primary, primary)
os.setresuid(64322, 64322, 64322)
with attach(np.zeros(3000, np.float32), control=path) as link:
    delta = np.zeros(3000, np.float32)
    delta[5] = 1.0
    link.receive()
    link.send(delta, threshold=1 << 19)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can enter; those of pytest are its user's alone."""
    path = Path(tempfile.mkdtemp(prefix="p2psgd-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def train(path: Path, primary: int, *others: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRAINER, str(path), str(primary), *map(str, others)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("groups", [(GROUP,), (USER, GROUP), (USER, 4711, GROUP, 4712)])
def test_a_user_of_the_group_trains_on_a_daemon_of_another_user(
    start_daemon: StartDaemon, place: Path, groups: tuple[int, ...]
) -> None:
    daemon = start_daemon(path=place / "control.sock", group=GROUP)
    found = daemon.path.stat()
    assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GROUP, 0o660)
    done = train(daemon.path, *groups)
    assert done.returncode == 0, done.stderr
    assert [update.steps for update in daemon.host.updates] == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_user_of_another_group_is_refused_by_the_file_and_by_the_daemon(
    start_daemon: StartDaemon, place: Path
) -> None:
    daemon = start_daemon(path=place / "control.sock", group=GROUP)
    refused = train(daemon.path, USER, 4711)
    assert "cannot connect to" in refused.stderr
    assert "Permission denied" in refused.stderr
    daemon.path.chmod(0o666)
    refused = train(daemon.path, USER, 4711)
    words = f"user {USER} may not control a daemon of user 0, nor is it of the group {GROUP} that may"
    assert words in refused.stderr
    assert daemon.trainer_status()["refused_requests"] == 1
    assert not daemon.host.updates


def test_the_state_directory_leads_to_a_socket_elsewhere_until_the_daemon_has_stopped(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    elsewhere, usual = tmp_path / "run" / "control.sock", tmp_path / "usual.sock"
    elsewhere.parent.mkdir()
    daemon = start_daemon(path=elsewhere, also=usual)
    with ControlClient(usual) as client:
        assert client.request("status") == {"status": {"node": "node-1"}}
    daemon.stop()
    assert not os.path.lexists(usual)
    assert not elsewhere.exists()


def test_a_link_that_a_killed_daemon_left_behind_is_in_nobodys_way(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    for number, target in enumerate(("gone/control.sock", "1/control.sock")):
        usual = tmp_path / f"usual-{number}.sock"
        usual.symlink_to(tmp_path / target)
        start_daemon(number + 2, path=tmp_path / f"{number}.sock", also=usual)
        with ControlClient(usual) as client:
            assert client.request("status")["status"]["node"] == f"node-{number + 2}"
    usual = tmp_path / "usual.sock"
    usual.symlink_to(tmp_path / "gone" / "control.sock")
    daemon = start_daemon(7, path=usual)
    assert not usual.is_symlink()
    with ControlClient(daemon.path) as client:
        assert client.request("status")["status"]["node"] == "node-7"


def test_two_daemons_do_not_share_a_socket(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(path=tmp_path / "run.sock", also=tmp_path / "a.sock")
    with pytest.raises(UsageError, match="another daemon answers at"):
        start_daemon(2, path=tmp_path / "run.sock", also=tmp_path / "b.sock")
    assert not os.path.lexists(tmp_path / "b.sock")
    with ControlClient(daemon.path) as client:
        assert client.request("status")["status"]["node"] == "node-1"


def test_where_the_group_is_the_daemons_own_nothing_is_asked_of_a_sandbox(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", forbidden)  # as SystemCallFilter=~@privileged does
    daemon = start_daemon(path=tmp_path / "run.sock", group=os.getegid())
    with ControlClient(daemon.path) as client:
        assert client.request("status")["status"]["node"] == "node-1"
