"""Who has heard which lie, and whether an honest node has named the liar: by a dropped link, an alarm or
an event.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from p2psgd.core.frontier import Origin
from p2psgd.wire.reject import RejectCode
from tests.sim.faults import Liar as Scheme
from tests.sim.ledger import label
from tests.sim.liar.lies import LIES
from tests.sim.outcome import Violation

HEARD_MIN: Final = 35  # times on one link and in one view: to send the view that it claims, a liar has up to
# five failure timeouts, and new ones if that number is decided meanwhile
NOT_FOR_LYING: Final = {
    RejectCode.SILENT,
    RejectCode.SLOW,
    RejectCode.SUPERSEDED,
    RejectCode.DUPLICATE,
}


class World(Protocol):
    """What is seen of it."""

    def see(self, what: str, times: int = 1) -> None: ...


class Naming:
    """Of one run."""

    def __init__(self, world: World, *, strict: bool) -> None:
        """`strict`: it is a violation if nobody is named."""
        self._world = world
        self._heard: Counter[tuple[Origin, str]] = Counter()  # on the link that each hearer has now
        self._views: dict[Origin, int] = {}
        self._named = False
        self._strict = strict

    def unlinked(self, hearer: Origin) -> None:
        """The link between an honest node and a liar is gone."""
        for key in [key for key in self._heard if key[0] == hearer]:
            del self._heard[key]

    def heard(self, hearer: Origin, view: int, lies: list[str]) -> None:
        """A frame with these lies has reached an honest node that knows the view of this number."""
        if self._views.get(hearer) != view:
            self.unlinked(hearer)
            self._views[hearer] = view
        for lie in lies:
            self._world.see(f"lie: {lie}")
            self._heard[hearer, lie] += 1
            if LIES[lie].named and self._heard[hearer, lie] >= HEARD_MIN and self._strict and not self._named:
                words = f"{label(hearer)} has heard {HEARD_MIN} times: {lie}, and nobody says who lies"
                raise Violation("unnamed", words)

    def dropped(self, code: RejectCode) -> None:
        """An honest node has closed its link to a liar."""
        self._world.see(f"liar dropped: {code.label}")
        self._named |= code not in NOT_FOR_LYING

    def admitted(self, liar: Scheme) -> None:
        """A liar has become a member."""
        self._world.see("a liar was admitted")
        if liar.kept_out and self._strict:
            raise Violation("admitted", f"node {liar.node} is a member, and nobody can have admitted it")

    def said(self, what: str) -> None:
        """An honest node has named a liar to people."""
        self._world.see(f"liar named in {what}")
        self._named = True
