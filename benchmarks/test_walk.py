"""The walk of an update can be taken, in a process of its own, passes where it must, and stays short."""

from __future__ import annotations

import subprocess
import sys

from tests import DEADLINE_S

CALLS_MAX = 160  # from Link.send to the peer's weights; the walk without --small takes as many as with it
FILES_MAX = 20


def test_an_update_walks_through_four_legs_that_touch_what_they_must() -> None:
    walk = [sys.executable, "-m", "benchmarks.walk", "--small", "--list"]
    done = subprocess.run(walk, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    table, *chains = done.stdout.split("\n\n")
    _, *rows = [line.rsplit(maxsplit=4) for line in table.splitlines()]
    assert len(rows) == len(chains) + 1
    assert all(0 < int(row[2]) <= int(row[1]) for row in rows[:-1])
    total = rows[-1][0].split() + rows[-1][1:]
    assert total[0] == "all"
    assert int(total[1]) <= CALLS_MAX
    assert int(total[2]) <= FILES_MAX
    first, last = chains[0].splitlines(), chains[-1].splitlines()
    assert first[0] == "trainer A: Link.send"
    assert first[1].split()[:2] == ["client/link.py", "Link.send,"]
    assert last[1].split()[:2] == ["client/link.py", "Link.receive,"]
    for file in ("wire/codec.py", "core/replica.py", "core/update_log.py", "net/connection.py"):
        assert f"  {file} " in done.stdout
