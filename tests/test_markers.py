"""No file of the repository has the marks of a merge that was not finished."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_no_merge_is_left_half_done() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    command = ["git", "grep", "--untracked", "-lE", "^(<{7}|>{7}) "]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
