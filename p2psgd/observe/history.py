"""The curves of a run at one node, from its start: bounded, coarser as they grow older."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from p2psgd.observe.status import NodeStatus

POINTS_MAX: Final = 512  # of which half stay when it is full
NODES_MAX: Final = 16  # whose pace is kept, this one included
EVERY_S: Final = 2.0  # at first; it doubles whenever half of the points go

Point = tuple[float, dict[str, float], dict[str, float]]  # Unix time; losses, and steps/s, by node


class History:
    """The losses and the pace of all nodes, as points in time."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.added = 0  # points, since the start
        self._every_s = EVERY_S
        self._due = float("-inf")
        self._steps: dict[str, tuple[float, int]] = {}  # by node, at the last point

    def look(self, now: float, status: Callable[[], NodeStatus], *, moment: float) -> None:
        """Take a point if one is due; `now` in seconds, monotonic, `moment` the same in Unix seconds, which
        may go back. `status` is asked only then.
        """
        if now < self._due:
            return
        self._due = now + self._every_s
        seen = status()
        steps, before = steps_of(seen), self._steps
        self._steps = {node: (now, count) for node, count in steps.items()}
        paces = {
            node: round((count - before[node][1]) / (now - before[node][0]), 3)
            for node, count in steps.items()
            if node in before and now > before[node][0] and count >= before[node][1]
        }
        losses = losses_of(seen, steps)
        if paces or losses:
            self.points.append((round(moment, 1), losses, paces))
            self.added += 1
        if len(self.points) >= POINTS_MAX:
            del self.points[1:-1:2]
            self._every_s *= 2


def steps_of(status: NodeStatus) -> dict[str, int]:
    """Return the steps of each node, by name, as far as this one knows: the nodes with most of them."""
    rows = () if status.dense else status.frontier  # a dense one has one row, which counts rounds
    steps = {row.node: 0 for row in rows}
    for row in rows:
        steps[row.node] = max(steps[row.node], row.steps)
    others = sorted(steps.keys() - {status.node}, key=lambda node: -steps[node])[: NODES_MAX - 1]
    return {status.node: status.trainer.steps, **{node: steps[node] for node in sorted(others)}}


def losses_of(status: NodeStatus, steps: Mapping[str, int]) -> dict[str, float]:
    """Return the losses that are known, by name: of the nodes in `steps`, or in a dense ring of some."""
    losses = {status.node: status.trainer.loss, **{peer.node: peer.loss for peer in status.peers}}
    known = [(node, loss) for node, loss in losses.items() if loss is not None]
    shown = [each for each in known if status.dense or each[0] in steps]
    return {node: float(f"{loss:.4g}") for node, loss in shown[:NODES_MAX]}
