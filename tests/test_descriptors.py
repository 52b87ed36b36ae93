"""How many files a node may have open, and which numbers its connections may have."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys

import pytest

from p2psgd.base import aio
from p2psgd.base.aio import (
    DESCRIPTORS_MIN,
    RESERVE_MAX,
    connections_end,
    describe_shortage,
    has_room,
    is_reserved,
)
from p2psgd.base.errors import ExitCode

RAISED = """\
import json, resource
from p2psgd.base.aio import raise_limit
from p2psgd.base.errors import UsageError
try:
    raise_limit()
    said = [0, ""]
except UsageError as error:
    said = [error.exit_code, str(error)]
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), *said]))
"""


def raised(limits: str) -> tuple[list[int], int, str]:
    """Both limits after raise_limit, exit code and words, in a process that begins with these."""
    begin = [*("sh", "-c", f'{limits} && exec "$@"', "sh"), sys.executable, "-c", RAISED]
    done = subprocess.run(begin, capture_output=True, check=True, text=True)
    after, code, words = json.loads(done.stdout)
    return after, code, words


def test_the_limit_is_raised_as_far_as_it_may_be() -> None:
    assert raised("ulimit -Sn 100 && ulimit -Hn 500") == ([500, 500], 0, "")
    assert raised("ulimit -n 64") == ([64, 64], 0, "")


def test_a_limit_below_what_a_node_needs_is_said_at_the_start() -> None:
    after, code, words = raised(f"ulimit -n {DESCRIPTORS_MIN - 1}")
    assert (after[0], code) == (63, ExitCode.CONFIGURATION)
    assert words.startswith("only 63 files may be open at once, and a node needs 64 at the least: raise the ")


def test_a_sandbox_that_forbids_raising_it_is_put_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: tuple[int, int]) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    aio.raise_limit()


@pytest.mark.parametrize("limit", [64, 100, 256, 1024, 2**20])
def test_a_part_of_all_numbers_is_for_the_nodes_own_files(limit: int) -> None:
    end, local = connections_end(limit), connections_end(limit, local=True)
    assert limit // 2 < end < local < limit
    assert limit - end <= RESERVE_MAX
    assert (
        limit - local >= 12
    )  # votes, checkpoint and own updates, each with its folder, and what tests count


def test_a_number_tells_whether_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert [is_reserved(number) for number in (0, 39, 40, 63)] == [False, False, True, True]
    assert [is_reserved(number, local=True) for number in (40, 51, 52)] == [False, False, True]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert not is_reserved(10**6)


def test_there_is_room_until_a_new_descriptor_would_be_a_kept_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[socket.socket] = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    limit = max(64, 2 * highest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        while has_room():
            taken.append(socket.socket())
        assert taken[-1].fileno() == connections_end(limit) - 1
        while len(taken) < limit:  # nothing is left at all
            try:
                taken.append(socket.socket())
            except OSError:
                break
        assert not has_room()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            each.close()
    assert has_room()


def test_a_shortage_is_told_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert describe_shortage() == (
        "all of the first 960 descriptors are taken, and the last 64 of 1,024 are kept for this node's own "
        "files: further connections are refused until some end; to let in more, raise the limit (ulimit -n, "
        "or LimitNOFILE= in the unit) and start it again"
    )
