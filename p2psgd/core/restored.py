"""What a node brings back from its disk when it starts again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2psgd.wire.messages import FrontierRow


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint: coordinates int32 (P,) at the frontier `rows` with `digest`, and the UPDATE frames of its
    `tail`; `own` are frames of this node's own updates since then, in order. `rounds`: how many of a sparse
    ring were complete then.
    """

    coordinates: NDArray[np.int32]
    rows: list[FrontierRow]
    digest: int
    tail: list[bytes]
    own: list[bytes]
    rounds: int = 0
