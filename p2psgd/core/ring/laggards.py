"""Members that a dense attempt has left one round behind: who of the others gives them that round's sums.

In a sparse ring laggards ask for the updates that they lack. Sums are asked for by nobody: they are kept for
one round, and whoever has them sees from a STATUS who does not.
"""

from __future__ import annotations

from typing import Final

from p2psgd.core.frontier import Origin
from p2psgd.core.parts import Parts
from p2psgd.core.peer import Peer
from p2psgd.core.ring.rounds import Rounds
from p2psgd.core.ring.standing import Standings

WAITING_PATIENCES: Final = 2  # for each node before this one: it has most likely begun to give
Rows = dict[Origin, tuple[int, int]]  # by origin, sequence and digest


class Laggards:
    """Of one replica; `serve` while idle, several times a second."""

    def __init__(self, parts: Parts, standings: Standings, rounds: Rounds) -> None:
        self._parts = parts
        self._standings = standings
        self._rounds = rounds
        self._before: Rows = {}  # the frontier before the last completed round,
        self._after: Rows = {}  # and after it
        self._since: float | None = None  # when a member was first seen that lacks it

    def begin(self) -> None:
        """All members are at this frontier."""
        self._after, self._since = self._rows(), None

    def completed(self) -> None:
        """One more round."""
        self._before, self._after = self._after, self._rows()

    def _rows(self) -> Rows:
        return {origin: row[:2] for origin, row in self._parts.state.frontier.items()}

    def serve(self, now: float) -> None:
        """Give the last round to those that lack it and nothing else, if this node is the one to do it: the
        first, or the next if those before it have not: who came to the ring after that round has no sums.
        """
        view, done = self._parts.membership.view, self._rounds.done
        told = dict(self._standings.within(view))
        if any(each.state.running for each in told.values()):
            return
        lacking = [
            peer
            for member, each in told.items()
            if (peer := self._parts.peers.get(member)) is not None
            and each.state.round == done - 1
            and self._builds_on(peer)
        ]
        self._since = (now if self._since is None else self._since) if lacking else None
        before = sum(each.state.round >= done and member < self._parts.me for member, each in told.items())
        wait_s = before * WAITING_PATIENCES * self._parts.timing.patience_s
        if self._since is None or now - self._since < wait_s:
            return
        for peer in lacking:
            self._rounds.give_result(peer, now)

    def _builds_on(self, peer: Peer) -> bool:
        """It is where this node was before that round. One that changed no weight left no trace."""
        rows = {origin: (row.sequence, row.digest) for origin, row in (peer.status or {}).items()}
        return rows == self._before
