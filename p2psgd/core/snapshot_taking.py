"""The joiner's side of a snapshot: whom to ask, what has come, and when to try another donor."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from p2psgd.core.adoption import Adoption
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.peer import Peer
from p2psgd.core.snapshot_intake import SnapshotIntake
from p2psgd.core.state import State
from p2psgd.core.timing import Timing
from p2psgd.core.view import View

LOSSY_PATIENCES: Final = 3  # so long a donor is sought from which nothing would be lost,
UNREADY_PATIENCES: Final = 12  # or so long as no READY member is linked: others may be about to be given it


class SnapshotTaking:
    """At most one snapshot under way."""

    def __init__(self, timing: Timing) -> None:
        self.donor: Origin | None = None
        self.intake: SnapshotIntake | None = None
        self.adoption: Adoption | None = None  # all has come, and is being taken
        self.bytes_taken = 0
        self.least_loss = 0  # updates that would be lost by the best of the donors chosen from last
        self._timing = timing
        self.began = self._moved = 0.0
        self._resting_until = 0.0
        self._avoid: dict[Origin, float] = {}  # donors that had none to give, and until when
        self._lossy_since: float | None = None
        self._none_is_ready = False  # of the donors chosen from last

    def choose(
        self,
        peers: Mapping[Origin, Peer],
        view: View,
        state: State,
        *,
        beyond: Set[Origin],
        anyway: bool,
        now: float,
    ) -> Peer | None:
        """A donor to ask now, or None: a READY member, or any if none is, from which nothing that was applied
        here would be lost, and that has more of an origin in `beyond`, or if that is empty of any, or
        `anyway`.
        """
        members = [peer for peer in peers.values() if peer.origin in view and peer.status is not None]
        able = [peer for peer in members if peer.ready] or members
        self._none_is_ready = not any(peer.ready for peer in able)
        useful = [peer for peer in able if anyway or self._is_ahead(peer, state, beyond)]
        losses = {peer.origin: self._loss(peer, state) for peer in members}
        harmless = [peer for peer in useful if not losses[peer.origin]]
        self.least_loss = min((losses[peer.origin] for peer in useful), default=0)
        whole = {peer.origin.node for peer in members if not losses[peer.origin]}
        if any(peer.ready and peer.origin.node in whole for peer in members) or view.is_majority(
            whole | {state.me.node}
        ):
            self.least_loss = 0  # what others have as well is not given up for what one of them says it has
        if not self.least_loss:
            self._lossy_since = None
        elif self._lossy_since is None:
            self._lossy_since = now
        if now < self._resting_until:
            return None
        harmless.sort(key=lambda peer: -peer.has(RING))  # in a dense ring: who is furthest
        return next((peer for peer in harmless if self._avoid.get(peer.origin, 0.0) <= now), None)

    def need_none(self) -> None:
        """Nothing is lacking that would take a snapshot: if that comes again, hope begins anew."""
        self._lossy_since = None

    @staticmethod
    def _is_ahead(peer: Peer, state: State, beyond: Set[Origin]) -> bool:
        origins = beyond or (peer.status or {}).keys()
        return any(peer.has(origin) > state.frontier.sequence(origin) for origin in origins)

    @staticmethod
    def _loss(peer: Peer, state: State) -> int:
        """How many updates applied here would be lost by taking this peer's replica."""
        return state.lost_by({origin: row.sequence for origin, row in (peer.status or {}).items()})

    def hopeless(self, now: float) -> bool:
        """For three patiences, or twelve while none is READY, every donor's replica has lacked something that
        only this one has applied, and that this node's log no longer holds.
        """
        patiences = UNREADY_PATIENCES if self._none_is_ready else LOSSY_PATIENCES
        waited = patiences * self._timing.patience_s
        return self._lossy_since is not None and now - self._lossy_since > waited

    def ask(self, donor: Origin, now: float) -> None:
        """A request is on its way."""
        self.donor, self.intake, self.bytes_taken = donor, None, 0
        self.began = self._moved = now

    def moved(self, bytes_taken: int, now: float) -> None:
        """The donor has sent something."""
        self._moved = now
        self.bytes_taken += bytes_taken

    def begin_adoption(self, adoption: Adoption) -> None:
        """All of it has come: the intake is the adoption's now."""
        self.intake, self.adoption = None, adoption

    def overdue(self, now: float) -> Origin | None:
        """The donor of which nothing has come for two patiences, of what is still to come."""
        coming = self.donor is not None and self.adoption is None
        return self.donor if coming and now - self._moved > 2 * self._timing.patience_s else None

    def rest(self, until: float) -> None:
        """Ask nobody for a while."""
        self._resting_until = until

    def end(self, now: float, *, avoid_s: float = 0.0) -> None:
        """It is over, with or without success; the donor is not asked again for `avoid_s`."""
        if self.donor is not None and avoid_s:
            self._avoid[self.donor] = now + avoid_s
        self._avoid = {donor: until for donor, until in self._avoid.items() if until > now}
        for part in (self.intake, self.adoption):
            if part is not None:
                part.discard()
        self.donor = self.intake = self.adoption = None

    def taken(self) -> None:
        """It is over, and became this node's replica."""
        self.donor = self.intake = self.adoption = None
