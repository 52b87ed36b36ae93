"""What a trainer has given to rounds since it attached: what its memory marks with each publication."""

from __future__ import annotations

from dataclasses import dataclass

from p2psgd.trainer.buckets import NOTHING_BEGUN, Begun


@dataclass(frozen=True, slots=True)
class Given:
    """`shares` that are whole; the last one held `changes` of the weights, or an array; how far the next one
    is `begun`. So many `changes_counted` of shard counts (shard_counts.py) went with updates.
    """

    shares: int = 0
    changes: bool = False
    begun: Begun = NOTHING_BEGUN
    changes_counted: int = 0

    def share(self, *, changes: bool) -> Given:
        """After one more whole share."""
        return Given(self.shares + 1, changes, changes_counted=self.changes_counted)
