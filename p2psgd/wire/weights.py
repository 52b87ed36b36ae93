"""What a replica's coordinates are worth as weights: the one place that knows how a mode writes them.

Of a dense ring they are the bit patterns of float32 numbers; else multiples of the quantum, which float32
holds exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire.mode import parse_mode


def weights_of(coordinates: NDArray[np.int32], *, mode: str, quantum_log2: int) -> NDArray[np.float32]:
    """The weights of coordinates int32 (P,) as float32 (P,); of a dense ring the same memory."""
    if parse_mode(mode).dense:
        return coordinates.view(np.float32)
    return coordinates.astype(np.float32) * np.float32(2.0**quantum_log2)
