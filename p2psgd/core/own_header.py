"""The header of an update that this node's trainer made."""

from __future__ import annotations

from p2psgd.core.events import OwnUpdateMade
from p2psgd.core.state import U64_MODULUS, State
from p2psgd.wire.update import UpdateHeader


def next_header(state: State, made: OwnUpdateMade, before: tuple[int, int]) -> UpdateHeader:
    """Of the update that comes after the one with this sequence number and running digest."""
    sequence, digest = before
    return UpdateHeader(
        *state.me,
        sequence=sequence + 1,
        digest=(digest + state.contribution(made.words, made.step)) % U64_MODULUS,
        mini_batch=made.mini_batch,
        step=made.step,
        count=len(made.words),
    )
