"""Which weights in memory were wrong: told when a snapshot has replaced them.

The old coordinates, plus the updates that only the snapshot has, must be the new ones; where they differ,
memory had changed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.run_spec import RunSpec
from p2psgd.core.snapshot_intake import SnapshotIntake
from p2psgd.core.state import State
from p2psgd.wire import codec
from p2psgd.wire.frames import PREFIX
from p2psgd.wire.update import parse_update

NAMED_MAX: Final = 3


class Damage:
    """Made before a snapshot is adopted in place of weights that are wrong, asked afterwards."""

    def __init__(self, state: State) -> None:
        self._coordinates = state.lattice.coordinates  # adopting puts others into their place
        self._applied = {origin: state.frontier.sequence(origin) for origin in state.frontier}

    def describe(self, intake: SnapshotIntake, state: State) -> str:
        """One sentence; `state` is that after the adoption of `intake`."""
        if not self._add_lacking(intake):
            return "which weights were wrong cannot be told: updates came in between that no log holds"
        return name_differences(state.spec, self._coordinates, state.lattice.coordinates)

    def _add_lacking(self, intake: SnapshotIntake) -> bool:
        """Bring the old coordinates to where the snapshot is; False if frames for that are missing."""
        lacking = sum(
            max(0, sequence - self._applied.get(origin, 0))
            for origin, (sequence, _) in intake.frontier.items()
        )
        weights = len(self._coordinates)
        for origin, sequence, frame in intake.frames:
            if sequence > self._applied.get(origin, 0):
                header, payload = parse_update(frame[PREFIX.size :], weights)
                words = codec.decode(payload, header.count, weights)
                codec.apply_coordinates(self._coordinates, words, header.step)
                lacking -= 1
        return not lacking


def name_differences(spec: RunSpec, old: NDArray[np.int32], new: NDArray[np.int32]) -> str:
    """One sentence on the weights that differ, int32 (P,) both."""
    wrong = np.flatnonzero(old != new)
    return name_weights(spec, old, new, wrong[:NAMED_MAX].tolist(), len(wrong))


def name_weights(
    spec: RunSpec, old: NDArray[np.int32], new: NDArray[np.int32], first: list[int], count: int
) -> str:
    """The same, where it is known that so many differ and which are the `first` of them."""
    each = [
        f"{spec.name_weight(index)} was {old[index] * spec.quantum:g} instead of "
        f"{new[index] * spec.quantum:g}"
        for index in first[:NAMED_MAX]
    ]
    if count > NAMED_MAX:
        each.append(f"{count - NAMED_MAX} more were wrong")
    return "; ".join(each) or "no weight is wrong any more"
