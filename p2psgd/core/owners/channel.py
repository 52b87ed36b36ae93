"""The contributions of this node to one owner: numbered, sent again after a link is lost, and kept until the
owner's updates cover them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import Origin

_SELF_BYTES: Final = 200  # what one costs beside its arrays


@dataclass(slots=True, eq=False)
class Pending:
    """A contribution that is not known to be covered: words uint32 (n,), sorted, with its magnitude; `rate`
    as in ContributionHeader.

    `seen`: the node's trainer has these changes in its weights, as it made them. `made`: when they came into
    being, in seconds of the replica's clock, and `steps` how many the trainer had made. `after`: the update
    of this node without which nobody may have it, since that covers where it came from. `redealt`: others
    were given these changes instead. `round`: in rounds, the one that it ends for its owner; 0 if none.
    `own`: the node's trainer made it.
    """

    words: NDArray[np.uint32]
    magnitude: int
    _: KW_ONLY
    seen: bool
    steps: int
    made: float
    rate: float = 0.0
    after: int = 0
    number: int = 0
    body: bytes = b""  # of its CONTRIBUTION frame; empty on the channel to this node itself
    redealt: bool = False
    round: int = 0
    own: bool = False

    @property
    def bytes(self) -> int:
        """Return about what it takes in memory."""
        return self.words.nbytes + len(self.body) + _SELF_BYTES

    def part(self, words: NDArray[np.uint32]) -> Pending:
        """Return one of the same kind with these words, to be given to an owner."""
        return replace(self, words=words, number=0, body=b"", redealt=False, round=0)

    def opposite(self) -> Pending:
        """Return what undoes it."""
        return replace(self.part(self.words ^ np.uint32(1)), seen=False, own=False)


class Channel:
    """The way from this node to one owner."""

    def __init__(self, owner: Origin) -> None:
        self.owner = owner
        self.last = 0  # the number of the last contribution
        self.pending: deque[Pending] = deque()
        self.bytes = 0
        self.sent = 0  # the number of the last one sent on the present link
        self.round = 0  # the last one that was ended here,
        self.end = 0  # and the number of the contribution that did

    def append(self, each: Pending) -> None:
        """Send this after all others; its number is the one after `last`."""
        self.last += 1
        each.number = self.last
        self.pending.append(each)
        self.bytes += each.bytes
        if each.round:
            self.round, self.end = each.round, each.number

    def resend(self) -> None:
        """Send all from the first on: the link is new, or the owner is to say again what it has."""
        self.sent = 0

    def unsent(self) -> Iterable[Pending]:
        """Yield what this link has not carried, in order; each counts as sent once the next is asked for."""
        for each in list(self.pending):
            if each.number > self.sent:
                yield each
                self.sent = each.number

    def cover(self, number: int) -> list[Pending]:
        """Drop, and return, the contributions up to this number: an update that is applied here covers
        them.
        """
        covered = []
        while self.pending and self.pending[0].number <= number:
            covered.append(self._pop())
        return covered

    def to_redeal(self) -> list[Pending]:
        """Return what others should be given instead."""
        return [each for each in self.pending if not each.redealt]

    @property
    def ends_round(self) -> bool:
        """Return whether the last round is over here: all that was contributed to it is covered, or others
        were given it.
        """
        return not any(each.number <= self.end and not each.redealt for each in self.pending)

    def waits(self, most: int) -> bool:
        """Return whether more than `most` are not covered, but for those that others were given."""
        too_many = len(self.pending) > most
        return too_many and len(self.pending) - sum(each.redealt for each in self.pending) > most

    @property
    def redealt_bytes(self) -> int:
        """Return the bytes of what others were given."""
        return sum(each.bytes for each in self.pending if each.redealt)

    def forget_redealt(self) -> list[Pending]:
        """Drop, and return, what others were given."""
        return self._drop(lambda each: each.redealt)

    def _drop(self, goes: Callable[[Pending], bool]) -> list[Pending]:
        dropped = [each for each in self.pending if goes(each)]
        self.pending = deque(each for each in self.pending if not goes(each))
        self.bytes = sum(each.bytes for each in self.pending)
        return dropped

    def _pop(self) -> Pending:
        first = self.pending.popleft()
        self.bytes -= first.bytes
        return first
