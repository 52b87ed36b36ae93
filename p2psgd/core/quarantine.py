"""Quarantine: the scrub has found that the weights in memory are not what was applied.

Nothing of them is given to anybody any more. The node first tries to make them anew by itself, from its last
checkpoint and its log: that loses nothing, needs nobody and no link. If it cannot, it looks for a donor
(snapshots); without one it ends, and goes on from its checkpoint.
"""

from __future__ import annotations

from p2psgd.core.effects import Alarm, Note, ReadCheckpoint, Reload
from p2psgd.core.events import CheckpointRead
from p2psgd.core.parts import Parts
from p2psgd.core.rebuild import Rebuild
from p2psgd.core.snapshots import Snapshots


class Quarantine:
    """Of one replica: into it, out of it by its own means, or on to a donor."""

    def __init__(self, parts: Parts, snapshots: Snapshots) -> None:
        self._parts = parts
        self._snapshots = snapshots
        self._rebuild: Rebuild | None = None

    def pass_time(self, now: float) -> None:
        """Go on with the scrub, and see what it found; wait no longer for a disk that does not answer."""
        parts = self._parts
        limit_s = parts.timing.gone_s
        if not parts.mending:  # a snapshot may have come first
            self._rebuild = None
        if parts.mending and self._rebuild is None and now - parts.quarantined_at > limit_s:
            self._give_up(f"reading the checkpoint has taken {limit_s:.0f} s", now)
        result = parts.sweeping.pass_time(now)
        if result is None:
            return
        parts.counters.scrubs += 1
        if result or parts.quarantined:
            return
        parts.counters.quarantines += 1
        words = "the weights in memory differ from what was applied: bad memory, or a bug"
        parts.out.order(Alarm(f"{words}; nothing is sent until they are right again"))
        parts.out.order(Note("quarantine", words))
        parts.quarantined = parts.mending = parts.feeder.silent = True
        parts.quarantined_at, parts.checkpoint_found = now, False
        self._rebuild = None
        self._snapshots.withdraw()
        parts.out.order(ReadCheckpoint())

    def checkpoint_read(self, event: CheckpointRead, now: float) -> None:
        """The checkpoint that was asked for, unless a snapshot has come before it."""
        self._parts.checkpoint_found |= event.found is not None
        if not self._parts.mending or self._rebuild is not None:
            return
        if event.found is None:
            self._give_up("there is no checkpoint that can be used", now)
            return
        self._rebuild = Rebuild(self._parts.state, event.found)

    @property
    def rebuilding(self) -> bool:
        """There is a piece of work for the next turn."""
        return self._rebuild is not None and self._parts.mending

    def turn(self, now: float) -> None:
        """One piece of the rebuilding."""
        rebuild = self._rebuild
        if rebuild is None or not self._parts.mending:
            return
        try:
            result = rebuild.advance()
        except LookupError as error:
            self._give_up(str(error), now)
            return
        if result:
            self._adopt(rebuild, now)
        elif result is not None:
            self._give_up("what they make together is wrong as well", now)

    def _adopt(self, rebuild: Rebuild, now: float) -> None:
        parts, damage = self._parts, rebuild.describe()
        parts.sweeping.abort()
        parts.sweeping.scrub_due = now  # the status is to say that all is well as soon as that is known
        parts.state.replace(
            rebuild.coordinates, rebuild.rows, rebuild.digest, magnitude_max=rebuild.magnitude_max
        )
        parts.quarantined = parts.mending = parts.feeder.silent = False
        parts.counters.mendings += 1
        words = f"the weights were made anew from the last checkpoint and {rebuild.applied} updates since"
        parts.out.order(Note("mended", f"{words}: {damage}"))
        parts.out.order(Reload())
        self._rebuild = None

    def _give_up(self, why: str, now: float) -> None:
        parts = self._parts
        parts.mending, parts.quarantined_at, self._rebuild = False, now, None
        parts.out.order(
            Note("quarantine", f"the weights cannot be made anew from the checkpoint and the log: {why}")
        )
