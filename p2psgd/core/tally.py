"""How much went through a replica since this life began."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Counts that grow all the time."""

    applied: int = 0  # peers' updates
    bytes_applied: int = 0  # of frames, own and peers'
    duplicates: int = 0
    indices_sent: int = 0
    own_bytes: int = 0  # of frames of own updates
    acknowledged: int = 0  # own updates that at least one peer has acknowledged

    def count_own(self, indices: int, frame_bytes: int) -> None:
        """One more own update was applied."""
        self.indices_sent += indices
        self.own_bytes += frame_bytes
