"""What a mesh asks of whoever its links belong to."""

from __future__ import annotations

from typing import Protocol

from p2psgd.core.frontier import Origin
from p2psgd.wire.frames import Body, FrameType


class MeshHost(Protocol):
    """Whoever the links belong to."""

    def link_opened(self, peer: Origin, name: str) -> None: ...
    def link_replaced(self, peer: Origin, name: str) -> None: ...  # by another connection to the same life
    def link_closed(self, peer: Origin, words: str) -> None: ...
    def link_drained(self, peer: Origin) -> None: ...
    def frame_received(self, peer: Origin, frame_type: FrameType, body: Body) -> None: ...
    def refused_by_peer(self, code: str, words: str, newest: int, *, listed: bool) -> None: ...
    def member_incarnation(self, node: int) -> int | None: ...  # of its life in the view
    def alarm(self, words: str) -> None: ...
    def stranger_met(self, node: int, words: str) -> None: ...  # of another run; said once
