"""Which weights in memory were wrong: told when a snapshot has replaced them.

The old coordinates, plus the updates that only the snapshot has, must be the new ones; where they differ,
memory had changed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.frontier import RING, Origin
from p2psgd.core.log import UpdateLog
from p2psgd.core.run_spec import RunSpec
from p2psgd.core.state import State
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.messages import FrontierRow
from p2psgd.wire.update import parse_update
from p2psgd.wire.weights import weights_of

NAMED_MAX: Final = 3


class Damage:
    """Made before a snapshot is adopted in place of weights that are wrong, asked afterwards."""

    def __init__(self, state: State) -> None:
        self._coordinates = state.lattice.coordinates  # adopting puts others into their place
        self._applied = {origin: state.frontier.sequence(origin) for origin in state.frontier}

    def describe(self, rows: list[FrontierRow], state: State) -> str:
        """One sentence; `rows` are the snapshot's, `state` is that after its adoption."""
        if state.spec.dense and self._applied != {RING: state.frontier.sequence(RING)}:
            return "which weights were wrong cannot be told: a dense ring keeps no updates to compare them by"
        if not self._add_lacking(rows, state.log):
            return "which weights were wrong cannot be told: updates came in between that no log holds"
        return name_differences(state.spec, self._coordinates, state.lattice.coordinates)

    def _add_lacking(self, rows: list[FrontierRow], log: UpdateLog) -> bool:
        """Bring the old coordinates to where the snapshot is; False if frames for that are missing."""
        weights = len(self._coordinates)
        for row in rows:
            origin = Origin(row.node, row.incarnation)
            for sequence in range(self._applied.get(origin, 0) + 1, row.sequence + 1):
                frame = log.frame(origin, sequence)
                if frame is None:
                    return False
                header, payload = parse_update(frame[PREFIX.size :], weights)
                words = codec.decode(payload, header.count, weights)
                codec.apply_coordinates(self._coordinates, words, header.step)
        return True


def name_differences(spec: RunSpec, old: NDArray[np.int32], new: NDArray[np.int32]) -> str:
    """One sentence on the weights that differ, int32 (P,) both."""
    wrong = np.flatnonzero(old != new)
    return name_weights(spec, old, new, wrong[:NAMED_MAX].tolist(), len(wrong))


def name_weights(
    spec: RunSpec, old: NDArray[np.int32], new: NDArray[np.int32], first: list[int], count: int
) -> str:
    """The same, where it is known that so many differ and which are the `first` of them."""
    named = first[:NAMED_MAX]
    was, now = (
        weights_of(coordinates[named], mode=spec.mode, quantum_log2=spec.quantum_log2)
        for coordinates in (old, new)
    )
    each = [
        f"{spec.name_weight(index)} was {was[place]:g} instead of {now[place]:g}"
        for place, index in enumerate(named)
    ]
    if count > NAMED_MAX:
        each.append(f"{count - NAMED_MAX} more were wrong")
    return "; ".join(each) or "no weight is wrong any more"
