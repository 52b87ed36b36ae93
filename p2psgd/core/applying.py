"""The one way by which an update that has passed every check is applied, own or a peer's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2psgd.core.effects import Alarm, Halt, Record
from p2psgd.core.frontier import Origin
from p2psgd.core.parts import Parts
from p2psgd.wire.update import UpdateHeader


def apply_update(
    parts: Parts, origin: Origin, header: UpdateHeader, words: NDArray[np.uint32], frame: bytes
) -> None:
    """Change the state as a whole, have it recorded, and say so if a weight comes near its limit."""
    warning = parts.state.apply(origin, header, words, frame)
    parts.tally.bytes_applied += len(frame)
    parts.out.order(Record(frame, own=origin == parts.me))
    if warning is not None:
        sentence = warning.describe(parts.state.spec)
        parts.out.order(Halt(sentence) if warning.fatal else Alarm(sentence))
