"""Connections that have not been greeted yet: how many come in, for how long, and who gives way in a crowd.

What a greeting says, and what follows from it, is its owner's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from p2psgd.errors import PeerError
from p2psgd.net.connection import Connection
from p2psgd.net.crowding import whom_to_displace
from p2psgd.net.reasons import Reasons

GREETING_TIMEOUT_S: Final = 10.0
GREETINGS_MAX: Final = 32  # inbound connections that have not said HELLO yet

Awaited = TypeVar("Awaited")


@dataclass(slots=True)
class _Place(Generic[Awaited]):
    timer: asyncio.TimerHandle
    awaited: Awaited


class Greetings(Generic[Awaited]):
    """What is awaited of each connection; those that this node dialled need no room.

    Whoever is given up is counted in `dropped` and aborted; then `given_up` is called, which is to `end` it.
    """

    def __init__(self, dropped: Reasons, given_up: Callable[[Connection, PeerError], None]) -> None:
        self._dropped, self._given_up = dropped, given_up
        self._places: dict[Connection, _Place[Awaited]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Connection]:
        """As they are now, the oldest first."""
        return iter([*self._places])

    def get(self, connection: Connection) -> Awaited | None:
        """None: it has been greeted, or given up."""
        place = self._places.get(connection)
        return None if place is None else place.awaited

    def begin(self, connection: Connection, awaited: Awaited) -> None:
        """Give it GREETING_TIMEOUT_S; one that came in and finds no room is aborted at once, and counted."""
        if not connection.dialled and not self._make_room(connection.host):
            self._dropped.count("too many greetings")
            connection.abort("too many connections that have not said hello")
            return
        timer = asyncio.get_running_loop().call_later(GREETING_TIMEOUT_S, self._overdue, connection)
        self._places[connection] = _Place(timer, awaited)

    def end(self, connection: Connection) -> Awaited | None:
        """It has been greeted, or is gone; what was awaited of it, None if nothing was."""
        place = self._places.pop(connection, None)
        if place is None:
            return None
        place.timer.cancel()
        return place.awaited

    def close(self) -> None:
        """From now on nobody is let in."""
        self._closed = True

    def _make_room(self, newcomer: str) -> bool:
        if self._closed:
            return False
        waiting = {each: each.host for each in self._places if not each.dialled}
        if len(waiting) < GREETINGS_MAX:
            return True
        displaced = whom_to_displace(waiting, newcomer)
        if displaced is None:
            return False
        self._give_up(displaced, "displaced", "its host has most of the places for a greeting")
        return True

    def _overdue(self, connection: Connection) -> None:
        what = "handshake" if connection.shaking_hands else "greeting"
        self._give_up(connection, f"no {what}", f"no {what} within {GREETING_TIMEOUT_S:.0f} s")

    def _give_up(self, connection: Connection, reason: str, words: str) -> None:
        self._dropped.count(reason)
        connection.abort(words)
        self._given_up(connection, PeerError(reason, words))
