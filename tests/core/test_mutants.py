"""The bugs that the tests of the core must find: in a process of its own, which they are put into."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.long
def test_all_mutants_of_the_core_die() -> None:
    command = [sys.executable, "-m", "tests.core.mutants"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
