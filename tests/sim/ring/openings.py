"""R1, and of R2 and R7 what concerns trainers: when a round is opened to one, and on what it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from p2psgd.core.effects import Deliver, Effect, OpenRound, Reload
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from tests.sim.agreement import Agreement
from tests.sim.ledger import label
from tests.sim.outcome import Violation
from tests.sim.ring.dense_ledger import Sums
from tests.sim.ring.standing import GenerationId, Standing

if TYPE_CHECKING:
    from tests.sim.daemon import Daemon


Rows = Mapping[Origin, int]  # by origin, the last sequence that is in the weights


def rows_of(replica: Replica) -> Rows:
    """What is in a replica's weights."""
    return {origin: replica.frontier.sequence(origin) for origin in replica.frontier}


class World(Protocol):
    """What is seen of the world."""

    def living(self) -> list[Daemon]: ...
    def see(self, what: str, times: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a trainer computes its share on, or has: the weights' digest and what is in them, in which view of
    its node.
    """

    digest: int
    rows: Rows
    view: int
    round: int


class Openings:
    """Of one run. `last_sums`: by life, its last dense round and what that came to."""

    def __init__(
        self, world: World, agreement: Agreement, last_sums: Mapping[Origin, tuple[int, Sums]]
    ) -> None:
        self._world = world
        self._agreement = agreement
        self._last_sums = last_sums
        self._opened: dict[Origin, _Opened] = {}
        self._completed: dict[Origin, Rows] = {}  # by life, dead or alive: after its last round
        self._told: dict[Origin, tuple[int, int, Sums]] = {}  # round, the half with a trainer's sums, those

    def check(self, daemon: Daemon, effect: OpenRound, effects: list[Effect], standing: Standing) -> None:
        """R1: the trainer goes on from all of the round before, which it has been given."""
        replica, number = daemon.replica, standing.done + 1
        what = f"{label(daemon.me)} opens round {number}"
        if not replica.ready:
            raise Violation("R1", f"{what} to its trainer and is not ready")
        if any(isinstance(other, Deliver | Reload) for other in effects[effects.index(effect) :]):
            raise Violation("R1", f"{what} before all of the one before is delivered")
        if standing.contributed:
            raise Violation("R1", f"{what}, to which it has given a share")
        view = replica.membership.view
        for other in self._world.living() if standing.generation is None else ():
            there = other.me in view and other.replica.membership.view.number == view.number
            if there and other.standing().done >= number:
                raise Violation("R1", f"{what}, which {label(other.me)} has completed in the same view")
        self._opened[daemon.me] = _Opened(replica.lattice.digest, rows_of(replica), view.number, number)
        if daemon.memory is not None:
            self._tell(daemon, effect, standing)

    def forget(self, life: Origin) -> None:
        """Its share is in the replica, or is empty: it does not matter any more what that was computed on. A
        later round may have the number of one that was completed by those alone who are out of the ring now.
        """
        self._opened.pop(life, None)

    def complete(self, daemon: Daemon) -> None:
        """It has completed a round."""
        self._completed[daemon.me] = rows_of(daemon.replica)

    def check_basis(
        self, of: GenerationId, order: tuple[Origin, ...], number: int, digest: int, rows: Rows
    ) -> None:
        """R2: as long as nobody has joined since their trainers began, all shares of a round are computed on
        the weights that it begins with, but for what others have completed without these. Newcomers may have
        brought that and have been evicted again, and repair brings it from who is not in the ring, all of a
        round or, if that breaks off for good, a part.
        """
        newest = self._agreement.last_joined(of.view)
        for life in order:
            opened = self._opened.get(life)
            if opened is None or opened.round != number or opened.digest == digest:
                continue
            if newest > opened.view:
                self._world.see("ring: share kept over a joiner")
            elif self._completed_without(order, opened.rows, rows):
                self._world.see("ring: share kept over a round of others")
            else:
                words = f"{label(life)} gives round {number} what was computed on other weights"
                raise Violation("R2", f"{words} than the round began with")

    def _completed_without(self, order: tuple[Origin, ...], before: Rows, after: Rows) -> bool:
        """All that came in between was in rounds that somebody completed who is not in this ring."""
        others = [rows for life, rows in self._completed.items() if life not in order]
        return all(
            any(sequence <= rows.get(origin, 0) for rows in others)
            for origin, sequence in after.items()
            if sequence > before.get(origin, 0)
        )

    def _tell(self, daemon: Daemon, effect: OpenRound, standing: Standing) -> None:
        """R7: the trainer finds in its memory what the round came to."""
        self._told.pop(daemon.me, None)
        done, sums = self._last_sums.get(daemon.me, (0, None))
        if not effect.contributors or sums is None or done != standing.done:
            return
        if effect.contributors != len(sums.shares):
            words = f"{label(daemon.me)} tells its trainer of {effect.contributors} contributors"
            raise Violation("R7", f"{words} to round {done}: there were {len(sums.shares)}")
        self._told[daemon.me] = done, effect.sums, sums
        self.check_kept(daemon)

    def check_kept(self, daemon: Daemon) -> None:
        """R7: until it gives its next share the trainer finds there what it was told of, unless other rounds
        were completed meanwhile, without it.
        """
        told, memory = self._told.get(daemon.me), daemon.memory
        assert memory is not None
        if told is None or told[0] != daemon.standing().done:
            return
        _, half, sums = told
        found = memory.sums[half][: len(sums.numbers)]
        if not (found == sums.numbers).all():
            wrong = int((found != sums.numbers).argmax())
            words = f"{label(daemon.me)} gives its trainer {found[wrong]!r} as sum {wrong} of a round"
            raise Violation("R7", f"{words}: it is {sums.numbers[wrong]!r}")
