from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

from p2psgd.cli.local.cluster import MARK, kill_marked, mark_of
from tests.cli.local.conditions import wait_until

Process = subprocess.Popen[bytes]
RUN = secrets.token_hex(16)


def start(node: str) -> Process:
    """Start a process in a session of its own, as a trainer is, and wait until it runs its own program."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ) | {MARK: mark_of(RUN, node)},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.fixture
def processes() -> Iterator[dict[str, Process]]:
    """Three processes of a run, those of node-1 and of a node whose name begins alike among them."""
    started = {node: start(node) for node in ("node-0", "node-1", "node-10")}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


def test_only_what_a_node_left_is_killed(processes: dict[str, Process]) -> None:
    assert kill_marked(mark_of(RUN, "node-1")) == 1
    assert processes["node-1"].wait() == -9
    assert [processes[node].poll() for node in ("node-0", "node-10")] == [None, None]


def test_a_whole_run_is_killed(processes: dict[str, Process]) -> None:
    assert kill_marked(RUN) == 3
    wait_until(lambda: all(process.poll() == -9 for process in processes.values()), "all to be dead")


def test_nobody_else_is_touched(processes: dict[str, Process]) -> None:
    assert kill_marked(secrets.token_hex(16)) == 0
    assert [process.poll() for process in processes.values()] == [None] * 3
