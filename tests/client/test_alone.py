"""A script that trains without others has a daemon of its own, which ends with it, whatever its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import p2psgd
from p2psgd.base.errors import TrainerError
from p2psgd.client import alone
from tests import DEADLINE_S
from tests.ipc.daemons import wait_until

SCRIPT = """
import sys, time
import numpy as np, p2psgd

link = p2psgd.attach(np.zeros(10, np.float32))
print("attached", link.rank, link.world_size, flush=True)
for _ in range(3):
    link.receive()
    link.send(np.full(10, 0.5, np.float32), threshold=1000)
print("trained", link.steps, link.weights.min() + link.residual.min(), flush=True)
match sys.argv[1]:
    case "closes":
        link.close(finished=True)
    case "fails":
        raise ValueError("a bug")
    case "hangs":
        time.sleep(600)
"""


def start(directory: Path, end: str, **variables: str) -> subprocess.Popen[str]:
    """Start the script; its daemons' states are made in `directory`."""
    environment = os.environ | {"P2PSGD_ALONE": "1", "TMPDIR": str(directory)} | variables
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=directory,
    )


def daemons_in(directory: Path) -> list[int]:
    """Return the processes whose command names this directory."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in command:
                found.append(int(process.name))
    return found


@pytest.mark.parametrize(("end", "code"), [("closes", 0), ("fails", 1)])
def test_a_script_trains_alone_and_leaves_nothing_behind(tmp_path: Path, end: str, code: int) -> None:
    script = start(tmp_path, end)
    out, err = script.communicate(timeout=DEADLINE_S)
    assert script.returncode == code, err
    assert out == "attached 0 1\ntrained 3 1.5\n"
    assert ("ValueError: a bug" in err) == bool(code)
    assert "other nodes" not in err
    wait_until(lambda: not daemons_in(tmp_path), "the daemon has ended")
    assert not list(tmp_path.iterdir())


def test_its_daemon_ends_with_a_script_that_is_killed(tmp_path: Path) -> None:
    script = start(tmp_path, "hangs")
    assert script.stdout is not None
    assert script.stdout.readline() == "attached 0 1\n"
    assert len(daemons_in(tmp_path)) == 1
    script.send_signal(signal.SIGKILL)
    script.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not daemons_in(tmp_path), "the daemon has ended")
    assert not list(tmp_path.glob("p2psgd-alone-*"))


def test_a_fork_of_the_script_and_modules_beside_it_do_not_touch_its_daemon(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('not for the daemon')")
    source = SCRIPT.replace(
        "match sys", "import os\nif os.fork() == 0:\n    sys.exit()\nos.wait()\nlink.receive()\nmatch sys"
    )
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "forks.py").write_text(source)
    environment = os.environ | {"P2PSGD_ALONE": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "scripts" / "forks.py"), "closes"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_a_daemon_that_cannot_start_says_why_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import p2psgd  # noqa: PLC0415

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(alone, "PROGRAM", ("-c", "raise SystemExit('p2psgd: no room')"))
    monkeypatch.delenv("P2PSGD_CONTROL", raising=False)
    with pytest.raises(TrainerError, match="the daemon of this script has ended: no room"):
        p2psgd.attach(alone=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("alone_", "control", "environment", "wanted"),
    [
        (None, None, {}, False),
        (None, None, {"P2PSGD_ALONE": "0"}, False),
        (None, None, {"P2PSGD_ALONE": "1"}, True),
        (False, None, {"P2PSGD_ALONE": "1"}, False),
        (True, None, {}, True),
        (False, "there", {"P2PSGD_CONTROL": "there"}, False),
    ],
)
def test_the_script_decides_and_then_the_environment(
    alone_: bool | None, control: str | None, environment: dict[str, str], *, wanted: bool
) -> None:
    assert alone.wants_alone(alone_, control, environment) is wanted


@pytest.mark.parametrize(
    ("alone_", "control", "environment", "words"),
    [
        (None, None, {"P2PSGD_ALONE": "yes"}, "P2PSGD_ALONE is 'yes': set it to 1"),
        (None, None, {"P2PSGD_ALONE": "1", "P2PSGD_CONTROL": "x"}, "P2PSGD_ALONE=1 is for .* P2PSGD_CONTROL"),
        (True, "there", {}, r"attach\(alone=True\) is for .* control=\.\.\. names one"),
    ],
)
def test_what_cannot_be_both_is_refused(
    alone_: bool | None, control: str | None, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(TrainerError, match=words):
        alone.wants_alone(alone_, control, environment)


def test_a_ring_of_one_is_refused_at_once() -> None:
    """It would wait for a second node for ever."""
    with pytest.raises(TrainerError, match="a ring needs two nodes, and a script that trains alone is one"):
        p2psgd.attach(np.zeros(6, np.float32), mode="ring", payload="dense", alone=True)
