"""How often connections were refused or dropped, by reason."""

from __future__ import annotations

import collections
from typing import Final

REASONS_MAX: Final = 64  # kinds that are counted apart; there are far fewer
TOLD_MAX: Final = 16  # kinds that peers name, whose words may be anything
REASON_CHARACTERS_MAX: Final = 40


class Reasons(collections.Counter[str]):
    """Counts by reason; what peers invent leaves room for this node's own."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def count(self, reason: str) -> None:
        """Once more, for a reason of this node's."""
        if reason in self or len(self) < REASONS_MAX:
            self[reason] += 1

    def count_told(self, how: str, code: str) -> None:
        """Once more, for a reason that a peer named; after TOLD_MAX kinds others are "other"."""
        reason = f"{how}: {code}"[:REASON_CHARACTERS_MAX]
        if reason not in self._told:
            if len(self._told) < TOLD_MAX:
                self._told.add(reason)
            else:
                reason = f"{how}: other"
        self.count(reason)
