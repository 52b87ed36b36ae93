"""I5: could all that live become one again, if from now on nothing went wrong?

Replays and snapshots are carried out in thought, on frontiers and floors alone, as long as any is possible.
Who then still lacks something is trapped: nobody's log holds it, and taking it as a snapshot would cost what
only the taker has. That must never be, unless those died who had applied what was given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations

from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from tests.sim.ledger import label
from tests.sim.whole import Grave


@dataclass(slots=True)
class _Holding:
    """What a node has applied, and up to where its log has let go, as it might be in the end."""

    me: Origin
    applied: dict[Origin, int]
    floors: dict[Origin, int]

    @classmethod
    def of(cls, replica: Replica) -> _Holding:
        rows = replica.frontier._rows
        floors = {origin: replica.log.trimmed_to(origin) for origin in rows}
        return cls(replica.me, {origin: row[0] for origin, row in rows.items()}, floors)

    def lacks(self, other: _Holding) -> list[Origin]:
        """The origins of which the other has more."""
        mine = self.applied
        return [origin for origin, last in other.applied.items() if last > mine.get(origin, 0)]

    def given_up(self, other: _Holding) -> list[Origin]:
        """The origins of which this one's log has let go of what the other lacks."""
        theirs = other.applied
        return [origin for origin, trimmed_to in self.floors.items() if trimmed_to > theirs.get(origin, 0)]

    def learn(self, other: _Holding) -> bool:
        """Take from the other what can be had without loss; whether that was anything."""
        lacking = self.lacks(other)
        replayed = [each for each in lacking if other.floors[each] <= self.applied.get(each, 0)]
        if len(replayed) < len(lacking) and not self.given_up(other):
            replayed = lacking  # by snapshot, of which the log has no more than the donor's
            self.floors |= {each: other.floors[each] for each in lacking}
        for origin in replayed:
            self.applied[origin] = other.applied[origin]
            self.floors.setdefault(origin, 0)
        return bool(replayed)


def find_trapped(replicas: list[Replica], graves: Iterable[Grave]) -> str | None:
    """Two that can never become equal again, though nobody has died with what they have given up."""
    if _is_replayable(replicas):
        return None
    holdings = [_Holding.of(replica) for replica in replicas]
    while any(one.learn(other) for one, other in permutations(holdings, 2)):
        pass
    now = {replica.me.node: replica.frontier for replica in replicas}

    def died(holder: _Holding, origin: Origin) -> bool:
        trimmed_to = holder.floors[origin]
        return any(
            grave.rows.get(origin, 0) >= trimmed_to
            and (grave.me.node not in now or now[grave.me.node].sequence(origin) < trimmed_to)
            for grave in graves
        )

    for one, other in permutations(holdings, 2):
        lost = [(one, origin) for origin in one.given_up(other)]
        lost += [(other, origin) for origin in other.given_up(one)]
        if one.lacks(other) and not any(died(*each) for each in lost):
            return (
                f"{label(one.me)} can never be told all that {label(other.me)} has, nor the other way round"
            )
    return None


def _is_replayable(replicas: list[Replica]) -> bool:
    """The usual case, seen at a glance: of each origin somebody holds all that anybody lacks."""
    for origin in {origin for replica in replicas for origin in replica.frontier}:
        applied = [replica.frontier.sequence(origin) for replica in replicas]
        least, most = min(applied), max(applied)
        if least < most and not any(
            last == most and replica.log.trimmed_to(origin) <= least
            for replica, last in zip(replicas, applied, strict=True)
        ):
            return False
    return True
