"""The ledger: every update that any node ever made, and for each life of a node what it must therefore hold.

Kept by the simulator, apart from the replicas, so that nothing is checked against itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.events import Event, FrameReceived, UpdateBody
from p2psgd.core.frontier import Origin
from p2psgd.core.replica import Replica
from p2psgd.wire import codec
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.update import OwnUpdateMade, UpdateHeader, pack_update
from tests.sim.outcome import Violation


@dataclass(frozen=True, slots=True)
class Entry:
    """One update: its frame as its origin logged it, what it adds to every weight int32 (P,)."""

    frame: bytes
    change: NDArray[np.int32]
    digest: int  # the origin's running digest after it


class Ledger:
    """All updates by origin, in sequence; and how far each has spread beyond the life that made it."""

    def __init__(self, initial: NDArray[np.int32]) -> None:
        self.initial = initial
        self.entries: dict[Origin, list[Entry]] = {}
        self.spread: dict[Origin, int] = {}
        self.updates = 0

    def record(self, replica: Replica, change: NDArray[np.int32]) -> None:
        """The replica has just made an update that changes the weights by `change`."""
        origin, sequence = replica.me, replica.sequence
        entries = self.entries.setdefault(origin, [])
        if sequence != len(entries) + 1:
            raise Violation(
                "I6",
                f"{label(origin)} made an update {sequence} when {len(entries)} of its updates are known: "
                "one number would stand for two payloads, or for none",
            )
        frame = replica.log.frame(origin, sequence)
        if frame is None:
            raise Violation("I5", f"{label(origin)} does not hold its update {sequence} that it just made")
        entries.append(Entry(frame, change, replica.frontier.digest(origin)))
        self.updates += 1

    def record_published(
        self, replica: Replica, sequence: int, digest: int, change: NDArray[np.int32]
    ) -> None:
        """The replica has published an update as an owner."""
        entries = self.entries.setdefault(replica.me, [])
        frame = replica.log.frame(replica.me, sequence)
        assert frame is not None
        assert sequence == len(entries) + 1
        entries.append(Entry(frame, change, digest))
        self.updates += 1

    def record_share(self, replica: Replica, made: OwnUpdateMade, change: NDArray[np.int32]) -> None:
        """A trainer has given an update to a round of a ring: from now on its next number stands for it, with
        these bytes, whichever round it goes into.
        """
        self.record_made_up(replica.me, made, change, replica.spec.key)

    def record_made_up(
        self, origin: Origin, made: OwnUpdateMade, change: NDArray[np.int32], key: int
    ) -> None:
        """From now on the origin's next number stands for this update."""
        entries = self.entries.setdefault(origin, [])
        before = entries[-1].digest if entries else 0
        digest = (before + codec.digest_words(made.words, made.magnitude, key)) % 2**64
        header = UpdateHeader(*origin, len(entries) + 1, digest, made.steps, made.magnitude, len(made.words))
        frame = pack_frame(FrameType.UPDATE, pack_update(header, made.payload))
        entries.append(Entry(frame, change, digest))
        self.updates += 1

    def entry(self, origin: Origin, sequence: int) -> Entry | None:
        """The update, None if nobody made it."""
        entries = self.entries.get(origin, [])
        return entries[sequence - 1] if 1 <= sequence <= len(entries) else None


class Book:
    """What one life of a node must hold: the ledger's sum over what its frontier has shown."""

    def __init__(self, ledger: Ledger, replica: Replica, *, checked: bool = True) -> None:
        """A new life, whatever it was restored to; not `checked`, it may hold anything."""
        self._ledger = ledger
        self._version = -1
        self._rows: dict[Origin, tuple[int, int, int]] = {}
        self._expected = ledger.initial.copy()
        self._bytes = b""
        self.flipped: tuple[int, int] | None = None  # a weight in damaged memory, and by how much
        if checked:
            self._follow_rows(replica, None)
            self._check(replica)

    @property
    def damaged(self) -> bool:
        """Return whether a scrub of this node may report damaged memory: a bit of it has flipped."""
        return self.flipped is not None

    def flip(self, replica: Replica, index: int, difference: int) -> None:
        """Memory has changed by itself."""
        self.flipped = index, difference
        replica.lattice.coordinates[index] += difference
        self._expected[index] += difference
        self._bytes = self._expected.tobytes()

    def follow(self, replica: Replica, event: Event, *, replaced: bool) -> list[tuple[Origin, Entry]]:
        """Check I1, I2 and I3 after an event; returns what was applied in it. `replaced`: by a snapshot."""
        applied: list[tuple[Origin, Entry]] = []
        if replaced and self.flipped is not None:
            index, difference = self.flipped
            self._expected[index] -= difference
            self._bytes = self._expected.tobytes()
            self.flipped = None
        if replica.frontier.version != self._version:
            message = event.message if isinstance(event, FrameReceived) else None
            body = message.body if isinstance(message, UpdateBody) else None
            applied = self._follow_rows(replica, None if replaced else body)
        self._check(replica)
        return applied

    def _check(self, replica: Replica) -> None:
        if replica.lattice.coordinates.tobytes() != self._bytes:
            wrong = int(np.flatnonzero(replica.lattice.coordinates != self._expected)[0])
            raise Violation(
                "I1",
                f"weight {wrong} of {label(replica.me)} is {replica.lattice.coordinates[wrong]}, but the "
                f"initial one and the updates of its frontier add up to {self._expected[wrong]}",
            )

    def _follow_rows(self, replica: Replica, body: bytes | bytearray | None) -> list[tuple[Origin, Entry]]:
        rows, before = replica.frontier._rows, self._rows
        applied = []
        for origin, row in rows.items():
            row_before = before.get(origin, (0, 0, 0))
            if row is row_before:
                continue
            if row[0] < row_before[0] or (row[0] == row_before[0] and row[1] != row_before[1]):
                raise Violation(
                    "I2",
                    f"the frontier of {label(replica.me)} at {label(origin)} went from {row_before} to {row}",
                )
            for sequence in range(row_before[0] + 1, row[0] + 1):
                entry = self._entry(replica, origin, sequence, body)
                self._expected += entry.change
                applied.append((origin, entry))
            if row[0] > row_before[0] and row[1] != applied[-1][1].digest:
                raise Violation(
                    "I3", f"{label(replica.me)} has another digest of {label(origin)} at update {row[0]}"
                )
            if origin != replica.me:
                self._ledger.spread[origin] = max(row[0], self._ledger.spread.get(origin, 0))
        if not before.keys() <= rows.keys():
            lost = min(before.keys() - rows.keys())
            raise Violation("I2", f"{label(replica.me)} has lost {label(lost)} from its frontier")
        self._rows, self._version = dict(rows), replica.frontier.version
        self._bytes = self._expected.tobytes()
        return applied

    def _entry(
        self, replica: Replica, origin: Origin, sequence: int, body: bytes | bytearray | None
    ) -> Entry:
        entry = self._ledger.entry(origin, sequence)
        if entry is None:
            raise Violation(
                "I3", f"{label(replica.me)} applied update {sequence} of {label(origin)}, which made no such"
            )
        if body is not None and body != entry.frame[5:]:
            raise Violation(
                "I3", f"{label(replica.me)} applied other bytes as update {sequence} of {label(origin)}"
            )
        frame = replica.log.frame(origin, sequence)
        if frame != entry.frame and (frame is not None or body is not None):
            raise Violation(
                "I3", f"{label(replica.me)} logged other bytes as update {sequence} of {label(origin)}"
            )
        return entry


def label(origin: Origin) -> str:
    """How a trace names an origin."""
    return f"node {origin.node} (life {origin.incarnation})"
