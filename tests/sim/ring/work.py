"""What a ring scenario has beyond an asynchronous one: payload, buckets, how fast and whether nodes train."""

from __future__ import annotations

from dataclasses import dataclass

from p2psgd.wire.mode import Mode, parse_mode

ARRAY_NUMBERS_MAX = 40


@dataclass(frozen=True, slots=True)
class RingWork:
    """`word`: of the run's mode. `step_s`: by place, seconds that a trainer takes for a share, on average.
    `followers`: places without a trainer. `buckets`: in a dense ring, where each begins and how many numbers
    it has, in the order that trainers give them. `arrays_every`: every such round sums an array; 0: none.
    `rests`: trainers rest while the healed core becomes one, before it works on.
    """

    word: str
    step_s: tuple[float, ...]
    followers: frozenset[int]
    buckets: tuple[tuple[int, int], ...]
    arrays_every: int
    rests: bool

    @property
    def mode(self) -> Mode:
        """What the word means."""
        return parse_mode(self.word)

    def array_numbers(self, round_number: int) -> int | None:
        """How many numbers scripts sum in this round; None: it is one of changes."""
        if not self.arrays_every or round_number % self.arrays_every:
            return None
        return 1 + 7 * round_number % ARRAY_NUMBERS_MAX
