"""What must have happened in a range of seeds with liars for its silence to mean anything."""

from __future__ import annotations

from typing import Final

from tests.sim.liar.lies import LIES

MUST_OCCUR: Final = (
    *(f"lie: {name}" for name in LIES),
    "a member turned liar",
    "a stranger lies",
    "a liar was admitted",
    "a liar was removed for good and goes on",
    "a liar goes on and nobody removes it",
    "a liar voted as it should",
    "a liar is gone",
    "liar dropped: checksum",
    "liar dropped: digest",
    "liar dropped: cluster id",
    "liar dropped: forbidden",
    "liar dropped: identity",
    "liar dropped: message",
    "liar dropped: origin",
    "liar dropped: ring",
    "liar dropped: snapshot",
    "liar dropped: view",
    "liar named in an alarm",
    "liar named in an event",
    "snapshot after a gap",
    "eviction",
    "readmission",
    "barrier wait",
    "removal for good",
    "restart from checkpoint",
    "joined with a fresh disk",
    "credit exhausted",
)
