"""Events worth knowing, as a sweep counts them: what must have occurred for its silence to mean anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from p2psgd.core.effects import Note
from p2psgd.core.replica import Replica
from p2psgd.wire.frames import FrameType

MUST_OCCUR: Final = (
    "duplicate dropped",
    "NEED after a gap",
    "NEED after STATUS",
    "repair by a non-origin",
    "old incarnation told to the restarted node",
    "GAP",
    "snapshot after a gap",
    "exclusives re-applied",
    "stall",
    "eviction",
    "readmission",
    "barrier wait",
    "race of two views",
    "quarantine",
    "mending after a flip",
    "restart from checkpoint",
    "all lost at once",
    "crash of the donor",
    "crash of the joiner",
    "joined with a fresh disk",
    "left the view",
    "removal",
    "removal for good",
    "link dropped by checksum",
    "link dropped by digest",
    "link dropped by framing",
    "silent link closed",
    "credit exhausted",
    "restart",
    "goodbye",
    "second connection refused",
)

See = Callable[[str], None]


def note_frame(see: See, frame: bytes, *, after_update: bool) -> None:
    """A node sends this frame."""
    if frame[4] == FrameType.NEED:
        see("NEED after a gap" if after_update else "NEED after STATUS")
    elif frame[4] == FrameType.GAP:
        see("GAP")


def note_state(see: See, replica: Replica) -> None:
    """A node's state at a tick."""
    joining = replica.parts.joining
    if joining.absent and not joining.passed:
        see("barrier wait")


def note_note(see: See, replica: Replica, note: Note, evicted: set[int]) -> None:
    """What a node says of itself; `evicted`: nodes that once were, kept here."""
    match note.kind:
        case "snapshot taken":
            if "again" in note.words:
                see("exclusives re-applied")
        case "evicted":
            see("eviction")
            if note.node is not None:
                evicted.add(note.node)
        case "admitted":
            see("readmission" if note.node in evicted else "admission")
        case "removed":
            see("removal for good" if "for good" in note.words else "removal")
        case "quarantine" | "lost" | "left":
            see(note.kind)
        case "ready":
            see("ready")
            if replica.me.node > 10 and replica.me.incarnation == 1:
                see("joined with a fresh disk")
