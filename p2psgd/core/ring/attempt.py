"""One attempt to run a view's ring: who is in it, and where this node stands."""

from __future__ import annotations

from dataclasses import dataclass

from p2psgd.core.frontier import Origin


@dataclass(frozen=True, slots=True)
class Attempt:
    """`number` within `view`, from 1; `order`: the members' lives around the ring; `place`: this
    node's in it.
    """

    view: int
    number: int
    order: tuple[Origin, ...]
    place: int

    @property
    def left(self) -> Origin:
        """From whom everything comes."""
        return self.order[self.place - 1]

    @property
    def right(self) -> Origin:
        """To whom everything goes."""
        return self.order[(self.place + 1) % len(self.order)]
