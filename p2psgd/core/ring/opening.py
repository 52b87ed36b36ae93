"""When this node's trainer may give its next share: as soon as this node has all that it is to build on."""

from __future__ import annotations

from p2psgd.core.budget import STALL
from p2psgd.core.effects import OpenRound, RefuseShare
from p2psgd.core.parts import Parts
from p2psgd.core.ring.rounds import Completed, Rounds


class Opening:
    """Of one replica. `active`: there is a trainer that takes part; `opened`: it may give a share, and has
    not given it whole.
    """

    def __init__(self, parts: Parts, rounds: Rounds) -> None:
        self.active = self.opened = False
        self._parts = parts
        self._rounds = rounds
        self._last = Completed(0, 0, own=False)

    def change(self, active: bool) -> None:
        """A trainer came, or went."""
        self.active, self.opened = active, self.opened and active

    def accepts(self) -> bool:
        """A share that comes now was asked for; if not, it is refused."""
        if not self.opened:
            number = self._rounds.done + 1
            words = (
                f"a share came that nobody asked for: round {number} has one of this node, or is not begun"
            )
            self._parts.out.order(RefuseShare(words))
        return self.opened

    def given(self) -> bool:
        """A share, or a part of it, was taken; True if that is all of it."""
        whole = self._rounds.contributed
        self.opened = self.opened and not whole
        return whole

    def completed(self, completed: Completed) -> None:
        """A round is complete here."""
        self.opened = self.opened and not completed.own
        self._last = completed

    def open(self, *, running: bool) -> None:
        """If it is time: not while the log is full, and not before the replica is that of all members.
        Without an attempt that is not known: a round may be complete elsewhere, or this node's memory wrong.
        """
        last, done = self._last, self._rounds.done
        if not (self.active and running) or self.opened or self._rounds.contributed or self._log_is_full:
            return
        self.opened = True
        known = last.round == done
        self._parts.out.order(OpenRound(last.contributors if known else 0, last.sums if known else 0))

    @property
    def _log_is_full(self) -> bool:
        """By the last look at it or as it is now: rounds may come faster than looks."""
        return self._parts.stalled or self._parts.state.log.pressure >= STALL
