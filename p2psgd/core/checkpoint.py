"""The core's part of a checkpoint: a consistent copy, its frontier, and the frames that go with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.cluster import Cluster
from p2psgd.core.effects import WriteCheckpoint
from p2psgd.core.frontier import Origin
from p2psgd.core.node_state import Node
from p2psgd.core.scrub import SliceScanner
from p2psgd.core.send import Outbound
from p2psgd.core.state import State
from p2psgd.wire.messages import FrontierRow


class Checkpoints:
    """Makes one checkpoint at a time, from `want` to `written`."""

    def __init__(
        self,
        cluster: Cluster,
        state: State,
        *,
        node: Node,
        scanner: SliceScanner,
        saved: dict[Origin, int],
        out: Outbound,
    ) -> None:
        """Keep `saved`, the frontier of the latest checkpoint, up to date from now on."""
        self._cluster = cluster
        self._state = state
        self._node = node
        self._scanner = scanner
        self._saved = saved
        self._out = out
        self.rule_states: Callable[[], list[bytes]] = list  # of this node's rule, as frame bodies
        self._wanted = False
        self._writing: dict[Origin, int] | None = None
        self._coordinates: NDArray[np.int32] | None = None  # lent to the writer

    def want(self) -> None:
        """Ask for a checkpoint, which is due."""
        self._wanted = True
        self.try_begin()

    def try_begin(self) -> None:
        """Begin the copy that is wanted; later, if another is under way or being written, or the weights are
        damaged.
        """
        busy = self._scanner.copying or self._writing is not None
        if self._wanted and not busy and not self._node.quarantined:
            self._scanner.begin_copy(self._order)

    def _order(self, coordinates: NDArray[np.int32], rows: list[FrontierRow]) -> None:
        self._wanted = False
        state = self._state
        self._coordinates = coordinates
        self._writing = {Origin(row.node, row.incarnation): row.sequence for row in rows}
        tail = state.log.tail(self._saved_by_others)
        digest, covers = state.digest_of(rows), state.covers.pack()
        effect = WriteCheckpoint(coordinates, rows, digest, tail, state.rounds, covers, self.rule_states())
        self._out.emit(effect)

    def _saved_by_others(self, origin: Origin) -> int:
        acks, others = self._cluster.acks, self._cluster.other_members
        return min((acks.durable(member, origin) for member in others), default=0)

    def written(self, *, successfully: bool) -> None:
        """Note that the last ordered copy is on disk, or could not be written."""
        if successfully and self._writing is not None:
            self._saved.clear()
            self._saved.update(self._writing)
        self._writing = None
        if self._coordinates is not None:
            self._state.log.release()
            self._scanner.take_back(self._coordinates)
            self._coordinates = None
