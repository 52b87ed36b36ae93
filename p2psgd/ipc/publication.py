"""What a trainer publishes with one store: the updates of a mini-batch and the residual that they leave.

The residual lies in memory twice. A send reads the current half, writes the other one, writes its updates
into the outbox, and then publishes both by storing OUTBOX_HEAD: positions are multiples of 8, so the lowest
bit is free to name the current half. A trainer killed before that store has sent nothing and changed nothing;
one killed after it has done both.

The residual after mini-batch n lies in half n mod 2. MINI_BATCH, stored just before the head, is the number
being published, so the two together tell whether it was.

A trainer that keeps its residual elsewhere, on a GPU, copies it into these halves now and then, always into
the one that does not hold the last copy. RESIDUAL_COPY, stored when a copy is whole, says which half has it
and of which mini-batch it is; that is what the next trainer gets.
"""

from __future__ import annotations


def pack_head(position: int, mini_batch: int) -> int:
    """OUTBOX_HEAD when the updates up to `position` bytes and the residual after `mini_batch` are current."""
    return position | half_after(mini_batch)


def unpack_head(head: int) -> tuple[int, int]:
    """The position and the current half, 0 or 1, of an OUTBOX_HEAD; another low bit stays in the position."""
    return head & ~1, head & 1


def half_after(mini_batch: int) -> int:
    """Which half, 0 or 1, holds the residual after this mini-batch."""
    return mini_batch & 1


def published(mini_batch: int, half: int) -> int:
    """The last mini-batch that was published, from MINI_BATCH and the half that the head names."""
    return mini_batch if half_after(mini_batch) == half else mini_batch - 1


def pack_copy(mini_batch: int, half: int) -> int:
    """RESIDUAL_COPY when this half has a copy of the residual after this mini-batch."""
    return (mini_batch + 1) << 1 | half


def unpack_copy(copy: int) -> tuple[int, int] | None:
    """The mini-batch and the half of a RESIDUAL_COPY; None: the residual is not kept elsewhere."""
    return ((copy >> 1) - 1, copy & 1) if copy >> 1 else None
