"""The executor carries out what a replica orders in an order that peers can build on."""

from __future__ import annotations

from typing import Any, cast

from p2psgd.core.effects import Drop, Effect, Send
from p2psgd.core.events import Event, LinkClosed, LinkDrained
from p2psgd.core.frontier import Origin
from p2psgd.node.run import Executor
from p2psgd.wire.reject import RejectCode

FIRST, SECOND = Origin(2, 1), Origin(3, 1)


class Setting:
    """A replica that answers by a table, and a network that closes a link within the call that drops it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        none = cast(Any, None)
        self.executor = Executor(
            self, network=cast(Any, self), disk=none, trainer=none, log=none, now=lambda: 0.0, call_soon=none
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, LinkClosed):
            return [Send(SECOND, b"of the link that closed")]
        return [Send(SECOND, b"before"), Drop(FIRST, RejectCode.SILENT, "silent"), Send(SECOND, b"after")]

    def send(self, peer: Origin, frame: bytes) -> None:
        self.sent.append(frame)

    def drop(self, peer: Origin, code: RejectCode, details: str) -> None:
        self.executor.handle(LinkClosed(peer))


def test_what_a_dropped_link_sends_comes_after_all_that_was_ordered_before_it() -> None:
    """A STATUS has the rows that changed since the one before: the order in which these are made counts."""
    setting = Setting()
    setting.executor.handle(LinkDrained(SECOND))
    assert setting.sent == [b"before", b"after", b"of the link that closed"]
