"""A link in a dense ring goes on after somebody has pressed Ctrl+C, wherever that was."""

from __future__ import annotations

import contextlib
import sys

import numpy as np

from p2psgd.base.errors import TrainerError
from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests.client.test_link_interruptions import LineInterrupt
from tests.ipc.daemons import StartDaemon
from tests.ipc.rings import DenseRing

INITIAL = {name: np.zeros(40, np.float32) for name in ("first", "middle", "last")}


def end_round(link: Link) -> None:
    """Begin what the interruption left, if it left anything."""
    try:
        link.allreduce_wait()
    except TrainerError:
        for name in link.proposed:
            with contextlib.suppress(TrainerError):  # it is begun already
                link.allreduce_begin(name)
        link.allreduce_wait()


def test_an_interruption_at_any_line_of_a_dense_round_tears_nothing(start_daemon: StartDaemon) -> None:
    """What was begun is given, what follows is given once, and the weights are those of the replica. Not even
    a publication whose signal to the daemon was cut off is waited for in vain.
    """
    daemon = start_daemon()
    ring = DenseRing([daemon], 120)
    with attach(INITIAL, mode="ring", payload="dense", control=daemon.path) as link:
        ring.open()
        number, interrupted = 0, True
        while interrupted:
            number += 1
            interrupt = LineInterrupt(number)
            interrupted = False
            try:
                sys.settrace(interrupt)
                link.receive()
                for name in ("middle", "first", "last"):
                    link.proposed[name][...] = 1
                    link.allreduce_begin(name)
                link.allreduce_wait()
                link.allreduce(np.ones(3, np.float32))
                link.send(np.ones(120, np.float32))
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.settrace(None)
            end_round(link)
            steps = link.steps
            assert (link.allreduce(np.full(2, number, np.float32)) == number).all(), interrupt.where
            assert link.receive() == 0, interrupt.where
            np.testing.assert_array_equal(link.weights, daemon.host.coordinates.view(np.float32))
            assert link.send(np.ones(120, np.float32)) == 120
            assert link.receive() == 1, interrupt.where
            assert link.steps == steps + 1, interrupt.where
            np.testing.assert_array_equal(
                link.weights, daemon.host.coordinates.view(np.float32), interrupt.where
            )
            assert daemon.trainer_status()["refused_trainers"] == 0, interrupt.where
    assert number > 300  # else it has not been interrupted everywhere
