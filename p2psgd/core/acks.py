"""Who has applied what, as far as it has been told: what trimming, eviction and admission rest on.

A member is heard directly by its own STATUS, or by way of another: the `least` column of a STATUS holds for
all members listed in its `confirmed` table, so nodes that cannot reach each other still know what the other
has. What is known of a life only grows; a new life begins with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.wire.messages import ConfirmedRow, FrontierRow

NEVER: Final = float("-inf")


@dataclass(slots=True)
class _Known:
    applied: dict[Origin, int] = field(default_factory=dict)
    durable: dict[Origin, int] = field(default_factory=dict)
    view: int = 0
    teller: Origin | None = None
    heard: float = NEVER

    def tell(self, view: int, teller: Origin, now: float) -> None:
        """News of it came from `teller`."""
        self.heard = now
        if view >= self.view:
            self.view, self.teller = view, teller


_NOTHING: Final = _Known()


class Acknowledgements:
    """What each other life has acknowledged."""

    def __init__(self, me: Origin) -> None:
        self._me = me
        self._known: dict[Origin, _Known] = {}

    def hear(
        self,
        peer: Origin,
        rows: Mapping[Origin, FrontierRow],
        view: int,
        confirmed: list[ConfirmedRow],
        now: float,
        *,
        view_max: int = 2**64,
    ) -> None:
        """Take in a STATUS of `peer`. `confirmed`: what it tells of others, as far as that is believed; of
        none a later view than `view_max`, since what is known only grows, and a wrong number would stay.
        """
        known = self._of(peer)
        known.tell(view, peer, now)
        applied, durable = known.applied, known.durable
        least = []
        for origin, row in rows.items():
            if row.sequence > applied.get(origin, 0):
                applied[origin] = row.sequence
            if row.durable > durable.get(origin, 0):
                durable[origin] = row.durable
            if row.least:
                least.append((origin, row.least))
        for other in confirmed:
            member = Origin(other.node, other.incarnation)
            if other.view and member not in (self._me, peer):
                known = self._of(member)
                known.tell(min(other.view, view_max), peer, now)
                applied = known.applied
                for origin, sequence in least:
                    if sequence > applied.get(origin, 0):
                        applied[origin] = sequence

    def _of(self, life: Origin) -> _Known:
        known = self._known.get(life)
        if known is None:
            known = self._known[life] = _Known()
        return known

    def forget_hearsay(self) -> None:
        """Forget what is known but when it was heard: somebody who told of others is not to be believed. Each
        member's next STATUS tells it anew.
        """
        self._known = {life: _Known(heard=known.heard) for life, known in self._known.items()}

    def keep(self, lives: Set[Origin]) -> None:
        """Forget all others."""
        for life in self._known.keys() - lives:
            del self._known[life]

    def applied(self, member: Origin, origin: Origin) -> int:
        """Last sequence of `origin` that `member` is known to have applied."""
        return self._known.get(member, _NOTHING).applied.get(origin, 0)

    def durable(self, member: Origin, origin: Origin) -> int:
        """Last sequence of `origin` that `member` is known to have in a checkpoint."""
        return self._known.get(member, _NOTHING).durable.get(origin, 0)

    def all_applied(self, member: Origin) -> dict[Origin, int]:
        """The last sequence of each origin that `member` is known to have applied."""
        return self._known.get(member, _NOTHING).applied.copy()

    def view(self, member: Origin) -> int:
        """Highest view number that `member` is known to know."""
        return self._known.get(member, _NOTHING).view

    def teller(self, member: Origin) -> Origin | None:
        """Who told of that view last: `member` itself, or one whose frontier covers all that the log of
        `member` had let go by then.
        """
        return self._known.get(member, _NOTHING).teller

    def heard(self, member: Origin) -> float:
        """When news of `member` came last."""
        return self._known.get(member, _NOTHING).heard

    def stable(self, origin: Origin, members: Iterable[Origin]) -> int:
        """Last sequence of `origin` that all of `members` but this node have applied; without others 2^64."""
        return min((self.applied(member, origin) for member in members if member != self._me), default=2**64)
