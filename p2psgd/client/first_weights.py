"""Take the first weights of a run from its first node, rank 0, as DDP broadcasts those of its rank 0.

All nodes bring the same: zeros, but for the very first weight, which is START quanta. The first node brings
all others to its own, and then that one. So a replica has its first weights once that weight is below BEGUN:
snapshots, checkpoints and logs need no rule of their own. Updates come to each node in the order in which the
first node made them. Those of other nodes, which may come before, do not bring a weight that far. There is
one run whatever happens: a first node that is started again sends what is missing to the weights that it has
then.
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
from p2psgd.ipc.run_proposal import BEGUN, measure_quantum, propose
from p2psgd.wire import codec
from p2psgd.wire.mode import Mode

START: Final = 3 * 2**21  # in quanta; BEGUN is 2**21 below, which is 2.0 by the usual quantum
FIRST_MAX: Final = 3 * 2**20  # of the first weight: training then does not bring it back to BEGUN at once
LOOK_S: Final = 0.1  # between looks for news, and between rounds that bring none
WAIT_S: Final = 3600.0
Update = tuple[int, NDArray[np.uint32]]  # a magnitude, and words
DENSE_ROUNDS_MAX: Final = 100  # for all but the first weight: few are needed, unless nodes come and go


def common_start(initial: Mapping[str, NDArray[Any]], quantum: float) -> dict[str, NDArray[Any]]:
    """Return what all nodes bring in place of these weights; TrainerError for a quantum that is none."""
    start = {name: np.zeros(values.shape, values.dtype) for name, values in initial.items()}
    for values in list(start.values())[:1]:
        values.reshape(-1)[:1] = START * 2.0 ** measure_quantum(quantum)
    return start


def check_first(mode: Mode) -> None:
    """Raise TrainerError for a mode in which no node can give first weights; call it before a run begins."""
    if mode.owners:
        raise TrainerError(
            'initial="first" is not for mode owners, whose updates do not bring weights exactly: call'
            ' torch.manual_seed before the model is made, on all nodes, and say initial="same"'
        )


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
        return
    at_first = float(next(iter(initial.values())).reshape(-1)[0])
    if at_first > FIRST_MAX * link.quantum:
        raise TrainerError(
            f"the very first weight of the model is {at_first:g}, and only a model where it is at most"
            f" {FIRST_MAX * link.quantum:g} can be given to other nodes: call torch.manual_seed on all nodes,"
            ' and say initial="same"'
        )
    if link.mode.dense:
        _give_dense(link, wanted.view(np.float32))
    else:
        _give(link, wanted)


def _has_begun(link: Link) -> bool:
    return link.steps > 0 or float(link.weights[0]) < BEGUN * link.quantum


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
        if not link.mode.rounds:
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
    if not link.mode.rounds and link.world_size > 1 and not _is_in(link):
        _wait(link, "the other nodes, before this one gives them the first weights", member=True)
    link.receive()  # in a ring, what the script before this one gave last
    if _has_begun(link):
        return
    for updates in digits(wanted, _coordinates(link)):
        _end_if_asked(link)
        last = updates[0][1][0] >> 1 == 0
        if _has_begun(link) or (last and (_coordinates(link) != wanted)[1:].any()):
            _refuse_two()  # before the run has its first weights: the script that follows mends them
        link._begin_at(updates)
        link.receive()


def _give_dense(link: Link, wanted: NDArray[np.float32]) -> None:
    """Give each round what is missing, and the first weight in a round of its own. What of that is missing
    then, since nodes came or went, is given to the rounds after it, in which the others train.
    """
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
        missing *= np.float32(1 - _contribute(link, missing))
        if last:
            break
    for _ in range(DENSE_ROUNDS_MAX):
        if link.stopping or abs(missing[0]) <= near:
            break
        missing *= np.float32(1 - _contribute(link, missing))


def _contribute(link: Link, change: NDArray[np.float32]) -> float:
    """Contribute a change times the nodes that gave to the round before, since its mean is taken; return the
    part of it that has come to the weights, 1.0 unless nodes came or went.
    """
    times = max(1, link.contributors)
    link._begin_dense(change * np.float32(times))
    link.receive()
    return times / max(1, link.contributors)


def _host(link: Link) -> NDArray[np.float32]:
    weights: NDArray[np.float32] = link.weights.get() if hasattr(link.weights, "get") else link.weights
    return weights


def _coordinates(link: Link) -> NDArray[np.int32]:
    """Return the weights in quanta, in the host's memory, int32 (P,)."""
    quanta: NDArray[np.int32] = np.rint(_host(link) / np.float32(link.quantum)).astype(np.int32)
    return quanta


def digits(wanted: NDArray[np.int32], present: NDArray[np.int32]) -> Iterator[list[Update]]:
    """Yield the updates, magnitude and words, that lead from the present coordinates to those wanted. Each
    magnitude is a binary digit, but for those of the first coordinate, which come last and together.
    """
    change = wanted.astype(np.int64) - present
    first, change[0] = int(change[0]), 0
    left, negative = np.abs(change), (change < 0).astype(np.uint32)
    indices_max = send_indices_max(change.size)
    magnitude = codec.MAGNITUDE_MAX
    while magnitude:
        indices = np.flatnonzero(left >= magnitude)[:indices_max]
        if indices.size:
            left[indices] -= magnitude
            yield [(magnitude, (indices << 1 | negative[indices]).astype(np.uint32))]
        else:
            magnitude //= 2
    word = np.array([first < 0], np.uint32)
    whole, rest = divmod(abs(first), codec.MAGNITUDE_MAX)
    yield [(each, word) for each in (rest, *[codec.MAGNITUDE_MAX] * whole) if each]
