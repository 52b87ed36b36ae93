"""What make says before it downloads: real runs of make, with a Python that only writes down its calls."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests import DEADLINE_S

ROOT: Final = Path(__file__).parents[1]
SIZES: Final = "its PyTorch brings about 5 GB of libraries for GPUs"


def stand_in(path: Path, version: str, *, new_enough: bool) -> Path:
    """A Python that knows its version, imports nothing and appends what else it is called with to `calls`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"""#!/bin/sh
case "$*" in
  --version) echo "Python {version}" ;;
  "-c import sys; "*) exit {0 if new_enough else 1} ;;
  "-c import torch") exit 1 ;;
  "-c import tomllib"*) echo torch ;;
  *) echo "$@" >>"{path.parent}/calls" ;;
esac
"""
    )
    path.chmod(0o755)
    return path


def make(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment in which p2psgd seems to be installed."""
    stand_in(tmp_path / "venv" / "bin" / "python", "3.12.1", new_enough=True)
    (tmp_path / "venv" / ".ready").touch()
    return tmp_path / "venv"


def install(venv: Path, extra: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return make(f"{venv}/.{extra}", f"VENV={venv}", f"PYTHON={venv}/bin/python", *words, **environment)


@pytest.mark.parametrize(("name", "version"), [("python3.9", "Python 3.9.2"), ("absent", "not there")])
def test_a_python_that_is_too_old_is_refused_in_a_sentence(tmp_path: Path, name: str, version: str) -> None:
    old = stand_in(tmp_path / "python3.9", "3.9.2", new_enough=False).with_name(name)
    done = make(f"{tmp_path}/venv/bin/python", f"VENV={tmp_path}/venv", f"PYTHON={old}")
    assert done.returncode == 2
    assert f"p2psgd needs Python 3.11 or newer, and {old} is " in done.stderr
    assert version in done.stderr
    assert not (tmp_path / "calls").exists()


def test_the_size_of_pytorch_is_said_before_it_is_downloaded_where_no_gpu_is(venv: Path) -> None:
    done = install(venv, "test-torch", "NVIDIA=")
    assert done.returncode == 0, done.stderr
    assert SIZES in done.stderr
    assert f"make {venv}/.test-torch PIP_EXTRA_INDEX_URL=ADDRESS" in done.stderr
    assert "install --quiet --requirement" in (venv / "bin" / "calls").read_text()


def test_nothing_is_said_where_there_is_a_gpu_or_an_index_is_given_or_no_pytorch_is_wanted(
    venv: Path,
) -> None:
    for extra, words in (("torch", "NVIDIA=here"), ("torch", "PIP_EXTRA_INDEX_URL=x"), ("lint", "NVIDIA=")):
        (venv / f".{extra}").unlink(missing_ok=True)
        done = install(venv, extra, words)
        assert (done.returncode, SIZES in done.stderr) == (0, False), done.stderr


def test_pip_shows_its_progress_on_a_terminal_only(venv: Path) -> None:
    above, below = pty.openpty()
    done = subprocess.run(
        ["make", f"{venv}/.lint", f"VENV={venv}", f"PYTHON={venv}/bin/python"],
        cwd=ROOT,
        stdout=below,
        stderr=below,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(below)
    os.close(above)
    assert done.returncode == 0
    (call,) = (venv / "bin" / "calls").read_text().splitlines()
    assert "--requirement" in call
    assert "--quiet" not in call
