"""Quarantine of a replica with wrong weights, and the rebuild of its weights from checkpoint and log."""

from __future__ import annotations

from typing import Final

import numpy as np

from p2psgd.core.effects import Alert, LogEvent, ReadCheckpoint, Reload
from p2psgd.core.events import CheckpointRead, Restored
from p2psgd.core.frontier import RING, Origin
from p2psgd.core.metrics import Counters
from p2psgd.core.node_state import Node
from p2psgd.core.scrub import SLICE, Scrub, SliceScanner
from p2psgd.core.send import Outbound
from p2psgd.core.snapshot_install import NAMED_MAX, name_coordinates
from p2psgd.core.snapshot_serve import SnapshotServer
from p2psgd.core.state import State, magnitude_of
from p2psgd.core.timing import Timing
from p2psgd.wire import codec
from p2psgd.wire.messages import FrontierRow

# ----------------------------------------------------------------------------
# The rebuild makes the right weights anew: those of a checkpoint, and the updates since then from the log.
#
# It makes them beside the ones in use, in pieces so that no turn of the loop is long, while updates go on
# coming. It relies on nothing that is in memory as a number of its own: the checkpoint has its
# digest, each frame its checksum and the digest that it leads to, and at the end the copy must have the
# digest that follows from these.


PIECE_WORDS: Final = 1 << 15  # applied in one turn, in a good millisecond,
UPDATE_WORDS: Final = 256  # where an update takes as long as this many words, however few it has


class Rebuild:
    """Brings a checkpoint of this replica to its frontier; nothing else may write the checkpoint's
    coordinates.

    Until `advance` is True, the owner of the log keeps what it holds.
    """

    def __init__(self, state: State, saved: Restored) -> None:
        self.coordinates = saved.coordinates
        self.key = state.spec.key
        self.digest = state.digest_of(saved.rows)
        self.magnitude_max = 0  # of the largest coordinate
        self.applied = 0  # updates since the checkpoint
        self._rows = {Origin(row.node, row.incarnation): row for row in saved.rows}
        self._state = state
        self._version = state.frontier.version
        self._scrub = Scrub(self)
        self._compared = 0
        self._wrong: list[int] = []  # the first of the weights that differ,
        self._wrong_count = 0  # and how many there are

    @property
    def rows(self) -> list[FrontierRow]:
        """The frontier of the copy."""
        return sorted(self._rows.values())

    def advance(self) -> bool | None:
        """Do one piece of the work: None if there is more to do; else the copy has all that the replica has,
        and has (True) or has not (False) the digest that it must have. LookupError if the log no longer has a
        frame that is needed, or has it damaged.
        """
        if not self._catch_up():
            return None
        live, start = self._state.lattice.coordinates, self._compared
        self._compared = min(start + SLICE, len(live))
        part = slice(start, self._compared)
        wrong = np.flatnonzero(live[part] != self.coordinates[part])  # both change alike from here on
        if not self._state.spec.dense:
            self.magnitude_max = max(self.magnitude_max, magnitude_of(self.coordinates[part]))
        self._wrong += (start + wrong[: NAMED_MAX - len(self._wrong)]).tolist()
        self._wrong_count += len(wrong)
        return self._scrub.advance(SLICE)

    def describe(self) -> str:
        """Return one sentence on the wrong weights among those in use; call it once `advance` was True."""
        if not self._wrong_count:
            return "no weight was wrong, but the digest kept of them"
        live = self._state.lattice.coordinates
        return name_coordinates(self._state.spec, live, self.coordinates, self._wrong, self._wrong_count)

    def _row(self, origin: Origin) -> FrontierRow:
        return self._rows.get(origin) or FrontierRow(*origin, 0, 0)

    def _catch_up(self) -> bool:
        """Apply what the copy lacks; False if that was too much for one turn."""
        left, frontier = PIECE_WORDS, self._state.frontier
        least = frontier.version - self._version + 1  # more than came since the last turn, so that it ends
        self._version = frontier.version
        if self._state.spec.dense and self._rows.keys() <= {RING}:
            if self._row(RING).sequence != frontier.sequence(RING):
                before, now = self._row(RING).steps, frontier.round
                raise LookupError(f"it is of round {before}, this node of {now}, and a dense ring has no log")
            return True
        for origin in frontier:
            row = self._row(origin)
            for header, words, _ in self._state.held(origin, row.sequence, frontier.sequence(origin)):
                if left <= 0 and least <= 0:
                    return False
                contribution = self._state.contribution(words, header.magnitude)
                if (row.digest + contribution) % 2**64 != header.digest:
                    raise LookupError(
                        f"update {header.sequence} of {origin.node:016x} does not go on from the one before"
                    )
                largest, _ = codec.apply_coordinates(self.coordinates, words, header.magnitude)
                if self._compared:  # what came before is looked at as a whole
                    self.magnitude_max = max(self.magnitude_max, largest)
                self._scrub.note(words, header.magnitude)
                self.digest = (self.digest + contribution) % 2**64
                row = FrontierRow(*origin, header.sequence, header.digest, steps=header.steps)
                self._rows[origin] = row
                self.applied += 1
                left -= len(words) + UPDATE_WORDS
                least -= 1
        return True


# ----------------------------------------------------------------------------
# Quarantine: the scrub has found that the weights in memory are not what was applied.
#
# None of them is sent any more. The node first tries to make them anew by itself, from its
# last checkpoint and its log: that loses nothing, needs nobody and no link. If it cannot, it looks for a
# donor (snapshots); without one it ends, and goes on from its checkpoint.


class Quarantine:
    """Takes one replica into quarantine, and out of it by its own means, or on to a donor."""

    def __init__(
        self,
        state: State,
        *,
        node: Node,
        scanner: SliceScanner,
        server: SnapshotServer,
        counters: Counters,
        out: Outbound,
        timing: Timing,
    ) -> None:
        self._state = state
        self._node = node
        self._scanner = scanner
        self._server = server
        self._counters = counters
        self._out = out
        self._timing = timing
        self.rebuild: Rebuild | None = None  # while the node is REPAIRING, work for every turn

    def tick(self, now: float) -> None:
        """Advance the scrub, and quarantine the weights if it finds them wrong; stop waiting for a silent
        disk.
        """
        limit_s = self._timing.gone_s
        if not self._node.repairing:  # a snapshot may have come first
            self.rebuild = None
        elif self.rebuild is None and now - self._node.quarantined_at > limit_s:
            self._give_up(f"reading the checkpoint has taken {limit_s:.0f} s", now)
        result = self._scanner.tick(now)
        if result is None:
            return
        self._counters.scrubs += 1
        if result or self._node.quarantined:
            return
        self._counters.quarantines += 1
        words = "the weights in memory differ from what was applied: bad memory, or a bug"
        self._out.emit(Alert(f"{words}; nothing is sent until they are right again"))
        self._out.emit(LogEvent("quarantine", words))
        self._node.quarantine(now)
        self.rebuild = None
        self._server.withdraw()
        self._out.emit(ReadCheckpoint())

    def checkpoint_read(self, event: CheckpointRead, now: float) -> None:
        """Begin the rebuild from the checkpoint that was read, unless a snapshot has come first."""
        if event.found is not None:
            self._node.find_checkpoint()
        if not self._node.repairing or self.rebuild is not None:
            return
        if event.found is None:
            self._give_up("there is no checkpoint that can be used", now)
            return
        self.rebuild = Rebuild(self._state, event.found)

    def turn(self, now: float) -> None:
        """Do one piece of the rebuild."""
        rebuild = self.rebuild
        if rebuild is None or not self._node.repairing:
            return
        try:
            result = rebuild.advance()
        except LookupError as error:
            self._give_up(str(error), now)
            return
        if result:
            self._adopt(rebuild, now)
        elif result is not None:
            self._give_up("the rebuilt weights are wrong as well", now)

    def _adopt(self, rebuild: Rebuild, now: float) -> None:
        damage = rebuild.describe()
        self._scanner.abort()
        self._scanner.scrub_soon(now)  # the status should say that all is well as soon as that is known
        self._state.replace(
            rebuild.coordinates, rebuild.rows, rebuild.digest, magnitude_max=rebuild.magnitude_max
        )
        self._node.release()
        self._counters.mendings += 1
        words = f"the weights were rebuilt from the last checkpoint and {rebuild.applied} updates since"
        self._out.emit(LogEvent("mended", f"{words}: {damage}"))
        self._out.emit(Reload())
        self.rebuild = None

    def _give_up(self, why: str, now: float) -> None:
        self.rebuild = None
        self._node.give_up_repair(now)
        self._out.emit(
            LogEvent("quarantine", f"the weights cannot be rebuilt from the checkpoint and the log: {why}")
        )
