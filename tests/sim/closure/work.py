"""How the nodes of a scenario evaluate in mode `closure`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from p2psgd.core.closure import sums


@dataclass(frozen=True, slots=True)
class ClosureWork:
    """`portions` of an evaluation, of which node i takes `step_s[i - 1]` each; `piece_numbers` of a sum go in
    one frame. After a portion a trainer ends with this chance, and is started again.
    """

    portions: int
    step_s: tuple[float, ...]
    piece_numbers: int
    crash: float


@contextmanager
def small_sums(work: ClosureWork | None) -> Iterator[None]:
    """Have the core cut sums into small pieces."""
    usual = sums.PIECE_NUMBERS
    try:
        if work is not None:
            sums.PIECE_NUMBERS = work.piece_numbers  # type: ignore[misc]
        yield
    finally:
        sums.PIECE_NUMBERS = usual  # type: ignore[misc]
