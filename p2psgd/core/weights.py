"""The weights as integers: exact, so that updates may come in any order and every replica still has the
same bits.

weight = quantum * coordinate. float32, in which trainers compute, holds quantum * k exactly up to |k| =
2^24; a coordinate beyond it ends the run with the weight's name, instead of letting trainers drift apart
from the replica. Nothing is ever clipped or decayed here.

In a dense ring the coordinates are the bit patterns of float32 weights instead (wire/update.py). Digests do
not mind; magnitudes mean nothing there, so they are neither looked at nor bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.run_spec import RunSpec
from p2psgd.wire import codec


@dataclass(frozen=True, slots=True)
class RangeWarning:
    """A coordinate came near (or passed: `fatal`) the last one that float32 holds exactly."""

    index: int
    magnitude: int
    fatal: bool

    def describe(self, spec: RunSpec) -> str:
        """One sentence that names the weight and the quantum and what to do."""
        name, magnitude = spec.name_weight(self.index), self.magnitude * spec.quantum
        largest = codec.COORDINATE_MAX * spec.quantum
        limit = f"{largest:g}, the largest that quantum 2^{spec.quantum_log2} can hold"
        if not self.fatal:
            return f"weight {name} has reached {magnitude:g} in magnitude; the run stops at {limit}"
        return (
            f"weight {name} has reached {magnitude:g} in magnitude, past {limit}: "
            "the run has diverged, or needs a lower learning rate or a larger quantum"
        )


class QuantizedWeights:
    """The coordinates int32 (P,) of one replica and their digest; not `bounded`: they are bit patterns."""

    def __init__(self, coordinates: NDArray[np.int32], *, key: int, bounded: bool = True) -> None:
        self.coordinates = coordinates
        self.magnitude_max = magnitude_of(coordinates) if bounded else 0
        self.key = key
        self._bounded = bounded
        self._warned = self.magnitude_max > codec.COORDINATE_WARN
        self.initial_digest = self.recompute_digest()
        self.digest = self.initial_digest

    def recompute_digest(self) -> int:
        """sum(coordinate_i * h(i)) mod 2^64 over the real weights, not the running sum."""
        return codec.digest_coordinates(self.coordinates, self.key)

    def replace(
        self, coordinates: NDArray[np.int32], digest: int, *, magnitude_max: int | None = None
    ) -> None:
        """Take over other coordinates int32 (P,), checked to have this digest; nobody else may write them.

        `magnitude_max`: that none is beyond; None: look at all of them.
        """
        assert coordinates.shape == self.coordinates.shape, (coordinates.shape, self.coordinates.shape)
        self.coordinates = coordinates
        self.digest = digest
        if self._bounded:
            self.magnitude_max = magnitude_of(coordinates) if magnitude_max is None else magnitude_max
        self._warned = self.magnitude_max > codec.COORDINATE_WARN

    def apply(self, words: NDArray[np.uint32], step: int, contribution: int) -> RangeWarning | None:
        """Add +-step to the weights that `words` name; `contribution` is what that adds to the digest.

        Warns once past 2^23, always past 2^24.
        """
        magnitude, index = codec.apply_coordinates(self.coordinates, words, step)
        self.digest = (self.digest + contribution) % 2**64
        if magnitude <= self.magnitude_max:
            return None
        self.magnitude_max = magnitude
        if magnitude > codec.COORDINATE_MAX:
            return RangeWarning(index, magnitude, fatal=True)
        if magnitude > codec.COORDINATE_WARN and not self._warned:
            self._warned = True
            return RangeWarning(index, magnitude, fatal=False)
        return None


def magnitude_of(coordinates: NDArray[np.int32]) -> int:
    """Largest |coordinate|, without a copy of them all."""
    return max(int(coordinates.max(initial=0)), -int(coordinates.min(initial=0)))
