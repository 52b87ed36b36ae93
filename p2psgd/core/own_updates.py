"""An update that this node's trainer made in asynchronous mode."""

from __future__ import annotations

from p2psgd.core.applying import apply_update
from p2psgd.core.events import OwnUpdateMade
from p2psgd.core.own_header import next_header
from p2psgd.core.parts import Parts
from p2psgd.wire.frames import FrameType, pack_frame
from p2psgd.wire.update import pack_update


def apply_own(parts: Parts, made: OwnUpdateMade) -> None:
    """Nobody else is asked: it is part of the replica from now on."""
    header = next_header(parts.state, made, parts.state.frontier.at(parts.me))
    frame = pack_frame(FrameType.UPDATE, pack_update(header, made.payload))
    apply_update(parts, parts.me, header, made.words, frame)
    parts.tally.count_own(header.count, len(frame))
