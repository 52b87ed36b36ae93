"""Two nodes that take the same part of the data: their replicas stay alike, so nothing else would tell."""

from __future__ import annotations

from p2psgd.ops.journal import Journal


class Shares:
    """Of one node and those it is linked with; "" stands for a share that is not known."""

    def __init__(self, own: str, journal: Journal) -> None:
        self._own, self._journal = own, journal
        self._told: dict[int, str] = {}  # the alarm for each linked node that takes the same share

    def link_opened(self, node: int, name: str, share: str) -> None:
        """Raise an alarm if that node takes this one's share."""
        if not share or share != self._own:
            return
        self._told[node] = words = (
            f"{name} takes share {share} of the data, and so does this node: both train on the same samples;"
            " give all nodes their list of peers in the same order, or each its own --share"
        )
        self._journal.alarm(words, node)

    def link_closed(self, node: int) -> None:
        """Nobody needs to look at that alarm any more."""
        if words := self._told.pop(node, ""):
            self._journal.settle(words)
