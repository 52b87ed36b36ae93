"""The walk of an update can be taken, in a process of its own, and passes where it must."""

from __future__ import annotations

import subprocess
import sys

from tests import DEADLINE_S


def test_an_update_walks_through_four_legs_that_touch_what_they_must() -> None:
    walk = [sys.executable, "-m", "benchmarks.walk", "--small", "--list"]
    done = subprocess.run(walk, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    table, *chains = done.stdout.split("\n\n")
    _, *rows = [line.rsplit(maxsplit=4) for line in table.splitlines()]
    assert len(rows) == len(chains) + 1
    assert all(0 < int(row[2]) <= int(row[1]) for row in rows[:-1])
    first, last = chains[0].splitlines(), chains[-1].splitlines()
    assert first[0] == "trainer A: Link.send"
    assert first[1].split()[:2] == ["client/link.py", "Link.send,"]
    assert last[1].split()[:2] == ["client/link.py", "Link.receive,"]
    for file in ("wire/codec.py", "core/replica.py", "core/update_log.py", "net/connection.py"):
        assert f"  {file} " in done.stdout
