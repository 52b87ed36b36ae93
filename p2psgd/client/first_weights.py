"""Take the first weights of a run from its first node, rank 0, as DDP broadcasts those of its rank 0.

The run begins at zeros, which all nodes have in common. The first node sends its weights as updates, digit by
binary digit of their coordinates, before its first step; the others wait for a step of any node. Updates
commute and the log has them, so nodes that are late, killed or cut off need no rule of their own. There is
one run whatever happens: a first node that is started again sends what is missing to the weights that it
has then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.base.formatting import say
from p2psgd.client.link import Link
from p2psgd.ipc.run_proposal import propose
from p2psgd.wire import codec

LOOK_S: Final = 0.1  # between looks at the daemon's status
WAIT_S: Final = 3600.0


def take_first_weights(link: Link, initial: Mapping[str, NDArray[Any]]) -> None:
    """Give these weights to the run if this is its first node, else wait for them; nothing is done in a run
    in which a step was made.

    SystemExit if the daemon asks this script to end before they have come: a step from zeros would take them
    from all. TrainerError if the node does not know its rank, in a ring, for weights that cannot be first
    ones, and if WAIT_S are over.
    """
    if link.mode.ring:
        raise TrainerError(
            'initial="first" is for asynchronous mode: in a ring call torch.manual_seed, with the same number'
            " on all nodes, before the model is made"
        )
    if link.rank == 0:
        if link.world_size > 1:
            _wait(link, "the other nodes, before this one gives them the first weights", lambda: _is_in(link))
        if not _has_begun(link):
            _give(link, initial)
    elif not _has_begun(link):
        what = "the first weights: those of the node with rank 0, and its first step"
        _wait(link, what, lambda: _has_begun(link))


def _give(link: Link, initial: Mapping[str, NDArray[Any]]) -> None:
    _, wanted = propose(initial, quantum=link.quantum, label="")
    for magnitude, words in digits(wanted, _coordinates(link)):
        link._begin_at(magnitude, words)
    link.receive()
    if not _has_begun(link) and (_coordinates(link) != wanted).any():
        raise TrainerError(
            "the weights of the run are not those that this node gave: another node has given its own as"
            " well. Give rank 0 to one node alone, delete the states of all nodes, and start them again"
        )


def _has_begun(link: Link) -> bool:
    return link.steps > 0 or any(link.peer_steps.values())


def _is_in(link: Link) -> bool:
    """Return whether this node is a complete member: one that has lost its state, and is cut off from a run
    that goes on, must not add first weights to it.
    """
    status = link._status()
    return bool(status.get("ready") and (status.get("view") or {}).get("number"))


def _wait(link: Link, what: str, over: Callable[[], bool]) -> None:
    """Follow the run until something is `over`."""
    end = time.monotonic() + WAIT_S
    said = False
    while not over():
        if link.stopping:
            say(f"asked to end while waiting for {what}")
            raise SystemExit(0)
        if not said:
            said = True
            say(f"waiting for {what}")
            link.report(waits=f"waiting for {what}")
        if time.monotonic() > end:
            raise TrainerError(f"{WAIT_S:.0f} s are over, and this node has waited in vain for {what}")
        link.wait(LOOK_S)
        link.receive()
    link.receive()
    if said:
        link.report(waits="")


def _coordinates(link: Link) -> NDArray[np.int32]:
    """Return the weights in quanta, in the host's memory, int32 (P,)."""
    weights = link.weights.get() if hasattr(link.weights, "get") else link.weights
    quanta: NDArray[np.int32] = np.rint(weights / np.float32(link.quantum)).astype(np.int32)
    return quanta


def digits(wanted: NDArray[np.int32], present: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield the updates, magnitude and words, that lead from the present coordinates to those wanted."""
    change = wanted.astype(np.int64) - present
    left, negative = np.abs(change), (change < 0).astype(np.uint32)
    magnitude = codec.MAGNITUDE_MAX
    while magnitude:
        indices = np.flatnonzero(left >= magnitude)
        if indices.size:
            left[indices] -= magnitude
            yield magnitude, (indices << 1 | negative[indices]).astype(np.uint32)
        else:
            magnitude //= 2
