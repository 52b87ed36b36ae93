"""Incarnations: the numbers that put the lives of one node in order. Pure: clock and chance are given.

A life has the time at which it began, milliseconds since 1970 << 16 | 16 random bits; or, where the clock is
behind what is known of the node, a number above that. Chance decides how far above, since two copies of one
state directory that begin at once must not get the same number.

No clock explains a number above TOLD_MAX: clocks that count nanoseconds in 64 bits end in the year 2262. A
peer that tells of one lies or is broken, and is not believed. Between the two limits is room for the lives of
a node that a liar has pushed as far as it can: at least 2^28.
"""

from __future__ import annotations

from typing import Final

CHANCE_BITS: Final = 32  # as much as 65 s on the clock, so that it catches up soon
TOLD_MAX: Final = 2**60  # that a peer may tell of: about the year 2527
INCARNATION_MAX: Final = 2**61  # that a life may have, and a peer be linked with


def next_incarnation(known: int, *, clock_ms: int, chance: int) -> int | None:
    """The incarnation of a life that begins now; None if there is none left.

    Args:
        known: the highest known of the node, 0 if none.
        clock_ms: milliseconds since 1970.
        chance: drawn from 0 to 2^CHANCE_BITS - 1.
    """
    by_clock = clock_ms << 16 | chance % 2**16
    incarnation = by_clock if by_clock > known else known + 1 + chance
    return incarnation if incarnation <= INCARNATION_MAX else None
