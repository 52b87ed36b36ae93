"""Take the first weights of a run from its first node, rank 0, as DDP broadcasts those of its rank 0.

All nodes bring the same: zeros, but for the very first weight, which is START quanta. The first node brings
all others to its own, and then that one. So a replica has its first weights once that weight is not START any
more; snapshots, checkpoints and logs need no rule of their own. Updates come to each node in the order in
which the first node made them, and commute with those of others. There is one run whatever happens: a first
node that is started again sends what is missing to the weights that it has then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError
from p2psgd.base.formatting import say
from p2psgd.client.link import Link
from p2psgd.ipc.layout import send_indices_max
from p2psgd.ipc.run_proposal import measure_quantum, propose
from p2psgd.wire import codec

START: Final = 2**19  # in quanta; from here one update reaches what most first weights are
LOOK_S: Final = 0.1  # between looks for news, and between rounds that bring none
WAIT_S: Final = 3600.0
DENSE_ROUNDS_MAX: Final = 100  # for all but the first weight: few are needed, unless nodes come and go


def common_start(initial: Mapping[str, NDArray[Any]], quantum: float) -> dict[str, NDArray[Any]]:
    """Return what all nodes bring in place of these weights; TrainerError for a quantum that is none."""
    start = {name: np.zeros_like(values) for name, values in initial.items()}
    for values in list(start.values())[:1]:
        values.reshape(-1)[:1] = START * 2.0 ** measure_quantum(quantum)
    return start


def take_first_weights(link: Link, initial: Mapping[str, NDArray[Any]]) -> None:
    """Give these weights to the run if this is its first node, else wait for them. Nothing is done in a run
    that has them.

    SystemExit if the daemon asks this script to end before they have come: a step from the start would be
    one of no model. TrainerError if the node does not know its rank, for weights that cannot be first ones,
    if WAIT_S are over, and if another node has given its own as well.
    """
    try:
        first = link.rank == 0
    except TrainerError as error:
        raise TrainerError(
            f'initial="first" takes the weights of the node with rank 0, and {error}; or call'
            ' torch.manual_seed before the model is made, on all nodes, and say initial="same"'
        ) from None
    _, wanted = propose(initial, quantum=link.quantum, label="", mode=link.mode.word)
    if _has_begun(link):
        return
    if not first:
        _wait(link, "the first weights, those of the node with rank 0")
    elif link.mode.dense:
        _give_dense(link, wanted.view(np.float32))
    else:
        _give(link, wanted)


def _has_begun(link: Link) -> bool:
    return link.steps > 0 or float(link.weights[0]) != START * link.quantum


def _wait(link: Link, what: str, *, member: bool = False) -> None:
    """Follow the run until it has its first weights, or, for a `member`, until this node is a complete one.
    In a ring nothing is given to the rounds meanwhile.
    """
    end = time.monotonic() + WAIT_S
    say(f"waiting for {what}")
    link.report(waits=f"waiting for {what}")
    while not _has_begun(link) and not (member and _is_in(link)):
        _end_if_asked(link)
        if time.monotonic() > end:
            raise TrainerError(f"{WAIT_S:.0f} s are over, and this node has waited in vain for {what}")
        came = link.wait(LOOK_S)
        if not link.mode.ring:
            link.receive()
        elif came:
            began = time.monotonic()
            news = link.receive()
            if _has_begun(link):
                break
            if link.mode.dense:
                link._begin_dense(None)
            else:
                link.skip()
            if link.mode.dense or not news:
                time.sleep(min(1.0, max(LOOK_S, time.monotonic() - began)))
    link.report(waits="")


def _end_if_asked(link: Link) -> None:
    if link.stopping:
        say("asked to end before the run has its first weights")
        raise SystemExit(0)


def _refuse_two() -> NoReturn:
    raise TrainerError(
        "the weights of the run are not those that this node gave: another node has given its own as well."
        " Give rank 0 to one node alone, delete the states of all nodes, and start them again"
    )


def _is_in(link: Link) -> bool:
    """Return whether this node is a complete member: one that has lost its state, and is cut off from a run
    that goes on, must not add first weights to it.
    """
    status = link._status()
    return bool(status.get("ready") and (status.get("view") or {}).get("number"))


def _give(link: Link, wanted: NDArray[np.int32]) -> None:
    if not link.mode.ring and link.world_size > 1 and not _is_in(link):
        _wait(link, "the other nodes, before this one gives them the first weights", member=True)
    link.receive()  # in a ring, what the script before this one gave last
    if _has_begun(link):
        return
    moving = False
    for magnitude, words in digits(wanted, _coordinates(link)):
        _end_if_asked(link)
        if not moving and words[0] >> 1 == 0:
            moving = True
            if (_coordinates(link) != wanted)[1:].any():
                _refuse_two()  # before the run has its first weights: the script that follows mends them
        elif not moving and _has_begun(link):
            _refuse_two()
        link._begin_at(magnitude, words)
        link.receive()


def _give_dense(link: Link, wanted: NDArray[np.float32]) -> None:
    """Give each round what is missing, times the nodes that gave to the round before: its mean is taken."""
    if wanted[0] == np.float32(START * link.quantum):
        wanted[0] += np.float32(link.quantum)
    near = max(link.quantum, float(abs(wanted).max()) * 2.0**-22)
    link.receive()
    if _has_begun(link):
        return
    for left in range(DENSE_ROUNDS_MAX, -1, -1):
        _end_if_asked(link)
        missing = wanted - _host(link)
        at_first, missing[0] = missing[0], 0.0
        last = abs(missing).max() <= near
        if _has_begun(link) or not (last or left):
            _refuse_two()
        if last:
            missing[:] = 0.0
            missing[0] = at_first
        link._begin_dense(missing * np.float32(max(1, link.contributors)))
        link.receive()
        if last:
            return


def _host(link: Link) -> NDArray[np.float32]:
    weights: NDArray[np.float32] = link.weights.get() if hasattr(link.weights, "get") else link.weights
    return weights


def _coordinates(link: Link) -> NDArray[np.int32]:
    """Return the weights in quanta, in the host's memory, int32 (P,)."""
    quanta: NDArray[np.int32] = np.rint(_host(link) / np.float32(link.quantum)).astype(np.int32)
    return quanta


def digits(wanted: NDArray[np.int32], present: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield the updates, magnitude and words, that lead from the present coordinates to those wanted, the
    first one last. Each magnitude but its is a binary digit.
    """
    change = wanted.astype(np.int64) - present
    first, change[0] = int(change[0]) or 1, 0
    left, negative = np.abs(change), (change < 0).astype(np.uint32)
    indices_max = send_indices_max(change.size)
    magnitude = codec.MAGNITUDE_MAX
    while magnitude:
        indices = np.flatnonzero(left >= magnitude)[:indices_max]
        if indices.size:
            left[indices] -= magnitude
            yield magnitude, (indices << 1 | negative[indices]).astype(np.uint32)
        else:
            magnitude //= 2
    while first:
        magnitude = min(abs(first), codec.MAGNITUDE_MAX)
        yield magnitude, np.array([first < 0], np.uint32)
        first -= magnitude if first > 0 else -magnitude
