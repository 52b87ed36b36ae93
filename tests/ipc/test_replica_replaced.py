"""When the daemon's replica is replaced as a whole, an attached trainer takes it anew and misses nothing."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from tests import DEADLINE_S
from tests.ipc.daemons import WEIGHTS, StartDaemon, make_update, make_words, smallest_rings

SCRIPT = """
import hashlib, select, sys, numpy as np, p2psgd
from tests.ipc.doomed_trainer import delta_of
weights = int(sys.argv[2])
with p2psgd.attach(np.zeros(weights, np.float32), control=sys.argv[1]) as link:
    print("attached", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        link.receive()
        link.send(delta_of(link.steps + 1, weights), threshold=8)
    sys.stdin.readline()
    print("stopped", flush=True)
    for line in sys.stdin:
        link.receive()
        print(hashlib.sha256(link.weights).hexdigest(), flush=True)
"""


@pytest.mark.parametrize("sizes", [{}, smallest_rings(WEIGHTS)])
def test_a_trainer_takes_the_new_replica_and_all_that_comes_after(
    start_daemon: StartDaemon, sizes: dict[str, int]
) -> None:
    daemon = start_daemon(**sizes)
    random = np.random.default_rng(3)

    def peer_update() -> None:
        indices = np.sort(random.choice(WEIGHTS, random.integers(1, 300), replace=False))
        words = make_words(indices, random.integers(0, 2, len(indices)))
        daemon.peer_update(make_update(words, WEIGHTS, magnitude=3))

    def replace() -> None:
        daemon.host.coordinates = random.integers(-1000, 1000, WEIGHTS, dtype=np.int32)
        daemon.server.session.replica_replaced()

    daemon.call(daemon.server.session.replica_replaced)  # nobody is there: nothing to be done
    command = [sys.executable, "-c", SCRIPT, str(daemon.path), str(WEIGHTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        orders, answers = trainer.stdin, trainer.stdout
        assert orders is not None
        assert answers is not None
        assert answers.readline() == "attached\n"

        def ask() -> str:
            print(file=orders, flush=True)
            return answers.readline().strip()

        for _ in range(20):
            for _ in range(random.integers(0, 20)):
                peer_update()
            daemon.call(replace)
        assert ask() == "stopped"
        daemon.take_all()
        for quiet in range(8):
            for _ in range(quiet):
                peer_update()
            before = daemon.trainer_status()["reloads"]
            daemon.call(replace)
            if quiet % 2:
                daemon.call(replace)
            for _ in range(quiet):
                peer_update()
            assert ask() == hashlib.sha256(daemon.weights().tobytes()).hexdigest()
            assert daemon.trainer_status()["reloads"] == before + 1
            peer_update()
            assert ask() == hashlib.sha256(daemon.weights().tobytes()).hexdigest()
            assert daemon.trainer_status()["reloads"] == before + 1
        orders.close()
        assert trainer.wait(DEADLINE_S) == 0
    assert daemon.trainer_status()["refused_trainers"] == 0
    steps = [update.steps for update in daemon.host.updates]
    assert steps == list(range(1, len(steps) + 1))
    assert steps
