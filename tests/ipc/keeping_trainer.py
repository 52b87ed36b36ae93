"""A trainer process that keeps a state: `python -m tests.ipc.keeping_trainer CONTROL WEIGHTS SENDS [DIE]`.

Sends until its node has SENDS mini-batches in all, and receives until there is a line on its standard input;
then it closes its link or, with DIE, kills itself. Prints one line of JSON when it has attached and one when
it has sent all.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any

import numpy as np

from p2psgd.client.attach import attach
from p2psgd.client.link import Link
from tests.ipc.doomed_trainer import delta_of


def kept(link: Link) -> dict[str, Any]:
    """The state after this mini-batch, also for the test."""
    return {"steps": link.steps, "table": np.full(5, link.steps), "name": "keeping"}


def say(link: Link, restored: Any) -> None:
    number = None if restored is None else restored["steps"]
    print(json.dumps({"steps": link.steps, "restored": number}), flush=True)


def main(control: str, weights: int, sends: int, *, die: bool) -> None:
    link = attach(np.zeros(weights, np.float32), control=control)
    say(link, link.restored)
    link.keep(lambda: kept(link))
    while link.steps < sends:
        link.receive()
        link.send(delta_of(link.steps + 1, weights), threshold=8)
    say(link, link.restored)
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        link.receive()
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    link.close(finished=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), die=len(sys.argv) > 4)
