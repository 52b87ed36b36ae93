"""Events worth knowing, as a sweep counts them: what must have occurred for its silence to mean anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from p2psgd.core.effects import Effect, LogEvent
from p2psgd.core.replica import Replica
from p2psgd.wire.frames import FrameType
from tests.sim.outcome import Violation

MUST_OCCUR: Final = (
    "duplicate dropped",
    "FETCH after a gap",
    "FETCH after STATUS",
    "repair by a non-origin",
    "old incarnation told to the restarted node",
    "TRIMMED",
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
    if frame[4] == FrameType.FETCH:
        see("FETCH after a gap" if after_update else "FETCH after STATUS")
    elif frame[4] == FrameType.TRIMMED:
        see("TRIMMED")


def note_state(see: See, replica: Replica) -> None:
    """A node's state at a tick."""
    joining = replica.joining
    if joining.absent and not joining.passed:
        see("barrier wait")


def note_replaced(see: See, effects: Iterable[Effect], *, flipped: bool) -> None:
    """A node's weights were replaced as a whole: by a snapshot, or by its own means, for which only damaged
    memory is a reason.
    """
    if any(isinstance(effect, LogEvent) and effect.kind == "snapshot taken" for effect in effects):
        see(f"snapshot after {'a flip' if flipped else 'a gap'}")
    elif flipped:
        see("mending after a flip")
    else:
        raise Violation("mending", "weights that nothing had damaged were rebuilt")


def note_note(see: See, replica: Replica, note: LogEvent, evicted: set[int]) -> None:
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
        case _:
            pass
