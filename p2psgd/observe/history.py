"""The curves of a run at one node, from its start: bounded, coarser as they grow older."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from p2psgd.observe.status import NodeStatus, PeerStatus, TrainerStatus

POINTS_MAX: Final = 512  # of which half stay when it is full
NODES_MAX: Final = 16  # of which it is kept, this one included
EVERY_S: Final = 2.0  # at first; it doubles whenever half of the points go

Point = tuple[float, dict[str, float], dict[str, float]]  # Unix time; losses, and steps/s, by node


class History:
    """The losses and the pace of all nodes, as points in time."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.added = 0  # points, since the start
        self._every_s = EVERY_S
        self._due = float("-inf")

    def look(self, now: float, status: Callable[[], NodeStatus], *, moment: float) -> None:
        """Take a point if one is due; `now` in seconds, monotonic, `moment` the same in Unix seconds, which
        may go back. `status` is asked only then.
        """
        if now < self._due:
            return
        self._due = now + self._every_s
        seen = status()
        nodes: dict[str, TrainerStatus | PeerStatus] = {seen.node: seen.trainer}
        nodes |= {peer.node: peer for peer in seen.peers}
        losses = _known({node: each.loss for node, each in nodes.items()})
        paces = _known({node: each.steps_per_s for node, each in nodes.items()})
        if paces or losses:
            self.points.append((round(moment, 1), losses, paces))
            self.added += 1
        if len(self.points) >= POINTS_MAX:
            del self.points[1:-1:2]
            self._every_s *= 2


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return those that are known, with the digits that a curve shows, of NODES_MAX nodes at most."""
    known = [(node, figure) for node, figure in figures.items() if figure is not None]
    return {node: float(f"{figure:.4g}") for node, figure in known[:NODES_MAX]}
