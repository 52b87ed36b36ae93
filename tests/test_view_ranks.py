"""Places in the data where no node has a place in a list: they come from the agreed view."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.daemons import Daemon, all_stopped, until
from tests.ports import free_ports

pytestmark = pytest.mark.long

SCRIPT = """
import time
import numpy
import p2psgd

before = None
with p2psgd.attach(numpy.zeros(10, numpy.float32)) as link:
    while not link.stopping:
        link.receive()
        link.send(numpy.full(10, 1e-3, numpy.float32), threshold=100)
        place = link.view_rank()
        if place != before:
            print("place", *place, "end", flush=True)
        before = place
        time.sleep(0.05)
"""


def last_place(daemon: Daemon) -> tuple[int, int]:
    """Return what the script of a node printed last."""
    lines = [line.split("place ")[1] for line in daemon.words().splitlines() if line.endswith(" end")]
    if not lines:
        return (-1, 0)
    rank, world_size, _ = lines[-1].split()
    return int(rank), int(world_size)


def test_nodes_of_lists_in_any_order_have_different_places_which_follow_who_comes_and_goes(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ports = free_ports(4)
    lines = [f"127.0.0.1:{port}" for port in ports]

    def start(number: int) -> Daemon:
        listed = lines[number:] + lines[:number]  # each begins with itself
        options = ("--peers", f"exec:printf '%s\\n' {' '.join(listed)}", "--listen", lines[number])
        beginning = ("--failure-timeout", "1", "--bootstrap-expect", "3")
        trainer = ("--trainer", f"{sys.executable} {script}")
        return Daemon(tmp_path / "abcd"[number], *options, *beginning, *trainer)

    with all_stopped([start(number) for number in range(3)]) as daemons:

        def have_places(count: int) -> bool:
            wanted = [(rank, count) for rank in range(count)]
            return sorted(map(last_place, daemons)) == wanted

        until(lambda: have_places(3), "three have a place each")
        assert daemons.pop(0).stop() == 0
        until(lambda: have_places(2), "two have the places of two")
        daemons.append(start(3))
        until(lambda: have_places(3), "a new one has one as well")
        for daemon in daemons:
            daemon.process.terminate()
        until(lambda: all("trainer left: has finished" in each.words() for each in daemons), "all have ended")
