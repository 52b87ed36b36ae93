"""A trainer process that a test lets die: `python -m tests.ipc.doomed_trainer CONTROL WEIGHTS ENDING`.

Prints one line of JSON when it is where it should die. Endings:
  pass     kills itself inside a send, after the residual pass and before anything is published
  publish  kills itself inside a send, after publishing and before the pass is marked as done
  wait     sends until the outbox is full and waits for room; to be killed from outside
  orphan   forks a child that keeps the connection open and kills itself between two sends
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import numpy as np

from p2psgd.ipc.requests import Request
from p2psgd.ipc.trainer_memory import TrainerMemory
from p2psgd.trainer.link import Link, attach
from p2psgd.wire import codec


def delta_of(mini_batch: int, weights: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The delta of a mini-batch, also for the test: in sixteenths of a quantum, so that sums are exact."""
    sixteenths = np.round(np.random.default_rng(mini_batch).normal(scale=8 * 16, size=weights))
    return (sixteenths * 2.0**-24).astype(np.float32)


def die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def announce(link: Link, **more: int) -> None:
    print(json.dumps({"mini_batches": link.mini_batches, "pid": os.getpid(), **more}), flush=True)


def announce_waiting(link: Link) -> None:
    """Announce as soon as the link reports what it waits for."""
    tell = link._client.tell

    def tell_and_announce(request: Request) -> bool:
        told = tell(request)
        announce(link)
        return told

    link._client.tell = tell_and_announce  # type: ignore[method-assign]


def main(control: str, weights: int, ending: str) -> None:
    link = attach(np.zeros(weights, dtype=np.float32), control=control)
    if ending == "wait":
        announce_waiting(link)
    for _ in range(3):
        link.send(delta_of(link.mini_batches + 1, weights), step=8)
    match ending:
        case "pass":
            announce(link)
            codec.encode = die
        case "publish":
            announce(link)
            TrainerMemory.end_pass = die  # type: ignore[method-assign]
        case "orphan":
            child = os.fork()
            if child == 0:
                signal.pause()
            announce(link, child=child)
            die()
    while True:
        link.send(delta_of(link.mini_batches + 1, weights), step=8)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
