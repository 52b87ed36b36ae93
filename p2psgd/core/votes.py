"""What a node must never forget while it has a vote: the durable half of deciding views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from p2psgd.core.view import View


class Ballot(NamedTuple):
    """An attempt to decide; ordered, and unique by the node that makes it."""

    round: int = 0
    node: int = 0


NO_VIEW: Final = View()
NO_BALLOT: Final = Ballot()


@dataclass(frozen=True, slots=True)
class Votes:
    """The latest decided view, and promises and acceptance for the one after it (`view.number` + 1)."""

    view: View = NO_VIEW
    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT
    value: View | None = None  # what was accepted at that ballot


NO_VOTES: Final = Votes()
