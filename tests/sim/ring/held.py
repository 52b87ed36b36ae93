"""R6: what a node holds of rounds in memory is bounded by one round and what waits to be passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from p2psgd.core.ring.sparse import SparseRounds
from tests.sim.ledger import label
from tests.sim.outcome import Violation

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon

SHARES_WAITING: Final = 2  # of each member: the right neighbour has none of a round before all of the last


def check_held(daemon: Daemon) -> None:
    """Idle, nothing of others' shares; running, no more than one of each member."""
    ring = daemon.replica.ring
    if ring is None or not isinstance(ring.rounds, SparseRounds):
        return
    rounds, me = ring.rounds, label(daemon.me)
    if ring.generation is None:
        if rounds._given or rounds._waiting:
            raise Violation("R6", f"{me} is in no generation and holds shares of others")
        return
    strangers = [each for each in rounds._given if each not in ring.generation.order]
    if strangers:
        raise Violation("R6", f"{me} holds a share of {label(strangers[0])}, which is not in the ring")
    by_round: dict[tuple[int, int], int] = {}
    for header, _ in rounds._waiting:
        by_round[header.round, header.node] = by_round.get((header.round, header.node), 0) + 1
    numbers = {number for number, _ in by_round}
    if len(numbers) > SHARES_WAITING:
        raise Violation("R6", f"{me} has frames of the rounds {sorted(numbers)} waiting to be sent")
