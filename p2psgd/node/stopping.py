"""The end of a clean stop: no node leaves while a peer may still take what it has made.

Linked peers are waited for until they have acknowledged everything. When none has, one that may come back is
waited for as well: what only this node holds is lost when it goes. Then comes the farewell, the last
checkpoint, and a while in which this node votes on the view without it.

Each step yields the seconds to wait before it looks again: the daemon sleeps them, the simulator's clock
passes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from p2psgd.core.events import HandOver, NodeStopping
from p2psgd.core.replica import Replica

if TYPE_CHECKING:
    from p2psgd.node.run import Run

DRAIN_TIMEOUT_S: Final = 30.0
DRAIN_POLL_S: Final = 0.02
COVER_TIMEOUTS: Final = 3  # for which covers are waited for: owners that are gone are found out meanwhile

log = logging.getLogger("p2psgd.node")

Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Farewell:
    """The result of a stop: how many updates no peer has acknowledged, and why the last checkpoint failed."""

    lost: int
    without: str


def leave_run(
    run: Run, why: str, *, now: Now, timeout_s: float, expected: Callable[[], bool]
) -> Generator[float, None, Farewell]:
    """Leave the run for good, once the trainer has made its last update.

    Args:
        run: This node's part in its run.
        why: The reason, for this node's own log.
        now: The clock of all waiting, in seconds.
        timeout_s: How long it waits for acknowledgements, and for the last checkpoint.
        expected: Whether a peer that is not linked may come back.
    """
    run.trainer_changed(active=False)
    yield from _end_round(run.replica, now)
    run.handle(HandOver())
    cover_deadline = now() + COVER_TIMEOUTS * run.replica.timing.failure_timeout_s
    yield from _cover(run.replica, now, cover_deadline)
    lost = yield from _deliver_rest(run.replica, now, now() + timeout_s, expected)
    yield from _cover(run.replica, now, cover_deadline)  # of a node that was alone, and no longer is
    run.handle(NodeStopping(why))
    without = yield from run.checkpointer.finish(timeout_s)
    yield from _leave_view(run.replica, now)
    return Farewell(lost, without)


def _end_round(replica: Replica, now: Now) -> Generator[float]:
    """Wait, in a ring, until the trainer's last contribution is in a round, one failure timeout at most."""
    ring = replica.ring
    if ring is None or not ring.rounds.contributed:
        return
    done, deadline = ring.rounds.done, now() + replica.timing.failure_timeout_s
    while ring.running and ring.rounds.done == done and now() <= deadline:
        yield DRAIN_POLL_S


def _cover(replica: Replica, now: Now, deadline: float) -> Generator[float]:
    """Wait, in mode `owners`, until updates cover what this node's trainer has contributed and all else is
    sent.
    """
    while replica.owners is not None and replica.owners.waits_to_leave and now() <= deadline:
        yield DRAIN_POLL_S


def _deliver_rest(
    replica: Replica, now: Now, deadline: float, expected: Callable[[], bool]
) -> Generator[float, None, int]:
    """Wait until peers have acknowledged the own updates; return how many no peer has."""
    while _is_undelivered(replica, expected) and now() <= deadline:
        yield DRAIN_POLL_S
    for peer, lag in replica.lags().items():
        if lag:
            log.warning("%s has not acknowledged %d updates", replica.cluster.name_of(peer), lag)
    return replica.unacknowledged


def _is_undelivered(replica: Replica, expected: Callable[[], bool]) -> bool:
    """Return whether a linked peer lacks own updates, or all do and one may come back."""
    return any(replica.lags().values()) or (replica.unacknowledged > 0 and expected())


def _leave_view(replica: Replica, now: Now) -> Generator[float]:
    """Stay after GOODBYE, one failure timeout at most, to vote on the view without this node, until it is
    decided or no node is left to decide it.
    """
    deadline = now() + replica.timing.failure_timeout_s
    while not replica.may_leave and now() <= deadline:
        yield DRAIN_POLL_S
