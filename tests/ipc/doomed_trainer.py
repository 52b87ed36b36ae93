"""A trainer process that a test lets die: `python -m tests.ipc.doomed_trainer CONTROL WEIGHTS ENDING`.

Its two tensors have a step each, so every send makes two updates. Prints one line of JSON when it is where it
should die. Endings:
  sweep, encode, write, count, publish, apply
           kills itself inside its fourth send, in the middle or at the end of what the word says
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

from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from p2psgd.ipc.protocol import Request
from p2psgd.ipc.ring_buffer import Counter, Counters, RingWriter
from p2psgd.wire import codec

STEPS = {"low": 8, "high": 5}
residual_pass = codec.residual_pass


def delta_of(steps: int, weights: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The delta of a mini-batch, also for the test: in sixteenths of a quantum, so that sums are exact."""
    sixteenths = np.round(np.random.default_rng(steps).normal(scale=8 * 16, size=weights))
    return (sixteenths * 2.0**-24).astype(np.float32)


def die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def announce(link: Link, **more: int) -> None:
    print(json.dumps({"steps": link.steps, "pid": os.getpid(), **more}), flush=True)


def announce_waiting(link: Link) -> None:
    """Announce as soon as the link reports what it waits for."""
    tell = link._client.tell

    def tell_and_announce(request: Request) -> bool:
        told = tell(request)
        announce(link)
        return told

    link._client.tell = tell_and_announce  # type: ignore[method-assign]


def die_in_sweep(source: Any, delta: Any, target: Any, words: Any, **options: Any) -> Any:
    """Half of the residual pass, then the end."""
    half = delta.size // 2
    residual_pass(source[:half], delta[:half], target[:half], words, **options)
    die()


def die_after_store(counters: Counters, fatal: Counter) -> None:
    """End with the next store of this counter."""
    store = counters.store

    def store_and_die(counter: Counter, value: int) -> None:
        store(counter, value)
        if counter is fatal:
            die()

    counters.store = store_and_die


def die_after_put() -> None:
    """End with the next entry that is written into a ring."""
    put = RingWriter.put
    RingWriter.put = lambda ring, body: die(put(ring, body))  # type: ignore


def prepare(ending: str, counters: Counters) -> None:
    """Have the next send end this process at this place."""
    match ending:
        case "sweep":
            codec.residual_pass = die_in_sweep
        case "encode":
            codec.encode = die
        case "write":
            die_after_put()
        case "count":
            die_after_store(counters, Counter.STEPS)
        case "publish":
            die_after_store(counters, Counter.OUTBOX_HEAD)
        case "apply":
            codec.apply_weights = die
        case _:
            pass


def main(control: str, weights: int, ending: str) -> None:
    parts = {"low": np.zeros(weights // 3, np.float32), "high": np.zeros(weights - weights // 3, np.float32)}
    link = attach(parts, control=control)
    if ending == "wait":
        announce_waiting(link)
    for _ in range(3):
        link.send(delta_of(link.steps + 1, weights), threshold=STEPS)
    if ending == "orphan":
        child = os.fork()
        if child == 0:
            signal.pause()
        announce(link, child=child)
        die()
    if ending != "wait":
        announce(link)
        prepare(ending, link._memory._counters)
    while True:
        link.send(delta_of(link.steps + 1, weights), threshold=STEPS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
