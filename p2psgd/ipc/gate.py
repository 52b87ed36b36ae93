"""Where a trainer waits that wants to attach while its node is not ready for one.

It is told why, and again when that has changed, at most every 2 s and never before it has read what it was
told last; then it is let in, as late as that may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from p2psgd.ipc.answers import ERROR_CHARACTERS_MAX, pack_answer
from p2psgd.ipc.host import ControlHost
from p2psgd.ipc.listener import Connection

SAY_EVERY_S = 2.0


class Gate:
    """Holds one attaching trainer; `let_in(connection, pid)` is called once the host is ready, and may have
    it held on.
    """

    def __init__(
        self,
        host: ControlHost,
        *,
        send: Callable[[Connection, bytes], bool],
        let_in: Callable[[Connection, int], None],
    ) -> None:
        self.connection: Connection | None = None
        self.pid = 0
        self._host = host
        self._send = send
        self._let_in = let_in
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look_due: asyncio.Handle | None = None
        self._said = ""
        self._silent_until = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop."""
        self._loop = loop

    def hold(self, connection: Connection, pid: int) -> None:
        """Let this trainer in, now or when the host is ready; nobody else may be waiting."""
        assert self.connection is None, self.pid
        self._said, self._silent_until = "", 0.0
        if self._host.ready():
            self.connection, self.pid = connection, pid
            self._look()
        else:
            self._let_in(connection, pid)

    def hold_on(self, connection: Connection, pid: int) -> None:
        """`let_in` could not do all in one turn of the loop: it is called again in the next one."""
        self.connection, self.pid = connection, pid
        self.look_soon()

    def lost(self, connection: Connection) -> None:
        """A connection has ended; if it was the waiting trainer's, nobody waits any more."""
        if connection is self.connection:
            self.connection = None

    def look_soon(self) -> None:
        """The host's readiness may have changed: look in the next turn of the loop."""
        if self.connection is not None:
            assert self._loop is not None
            self._look_at(self._loop.call_soon(self._look))

    def close(self) -> None:
        """Nobody is let in any more; who waits hears it from the listener."""
        self.connection = None
        if self._look_due is not None:
            self._look_due.cancel()

    def _look_at(self, due: asyncio.Handle) -> None:
        """One look is planned at a time: the last word counts."""
        if self._look_due is not None:
            self._look_due.cancel()
        self._look_due = due

    def _look(self) -> None:
        connection = self.connection
        if connection is None:
            return
        assert self._loop is not None
        now, words = self._loop.time(), self._host.ready()
        if not words:
            self.connection = None
            self._let_in(connection, self.pid)
        elif words == self._said:
            return
        elif now < self._silent_until or connection.is_owed_a_read():
            self._look_at(self._loop.call_later(max(0.1, self._silent_until - now), self._look))
        else:
            self._said, self._silent_until = words, now + SAY_EVERY_S
            self._send(connection, pack_answer({"waits": words[:ERROR_CHARACTERS_MAX]}))
