"""One host that is dialled for as long as the node lives: at once, then with a jittered back-off up to the
node's patience, or twelve of them where somebody has only told that it may be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from p2psgd.discovery.address import Address
from p2psgd.discovery.naming import Host

FIRST_DELAY_S: Final = 0.1
HINT_PATIENCES: Final = 12  # between two attempts to reach a node that others have told of, at most


class Dialler:
    """Keeps dialling a host, by one of its addresses after the other, while its node is not linked; `words`
    says what became of the last attempt.

    `called` is how people call it. `hinted`: the node that is said to be there.
    """

    def __init__(
        self,
        called: str,
        host: Host,
        *,
        patience_s: float,
        now: Callable[[], float],
        dial: Callable[[Dialler, Address], Awaitable[None]],
        linked: Callable[[int], asyncio.Future[None] | None],
        hinted: int | None = None,
    ) -> None:
        self.called = called
        self.host = host
        self.hinted = hinted
        self.node = hinted  # who answers there, once known
        self.words = ""
        self.since = now()
        self.ourselves = False
        self.was_linked = False
        self._patience_s = patience_s
        self._now = now
        self._dial = dial
        self._linked = linked
        self._turn = 0  # which address is next
        self._changed = asyncio.Event()

    def move(self, host: Host) -> None:
        """It has these addresses now."""
        if set(host) != set(self.host):
            self.host = host
            self._changed.set()

    def met(self, node: int) -> None:
        """This node has answered there, and is linked."""
        self.was_linked = True
        if self.hinted is None:
            self.node = node
        self.words = "" if node == self.node else "another node answers there"

    async def run(self) -> None:
        """Dial until cancelled, or until the host turns out to be this node itself."""
        delay_s = FIRST_DELAY_S
        longest_s = self._patience_s * (1 if self.hinted is None else HINT_PATIENCES)
        while not self.ourselves:
            closed = None if self.node is None else self._linked(self.node)
            if closed is not None:
                linked_at = self._now()
                await asyncio.wait([closed])
                if self._now() - linked_at > self._patience_s:  # else it may fail at once every time
                    delay_s = FIRST_DELAY_S
            elif self.host:
                await self._dial(self, self.host[self._turn % len(self.host)])
                self._turn += 1
                if self.node is not None and self._linked(self.node) is not None:
                    continue
            # jittered, so that nodes started together do not dial in step
            if await self._hears_of_change(delay_s * random.uniform(0.5, 1.0)):
                delay_s = FIRST_DELAY_S
            else:
                delay_s = min(2 * delay_s, longest_s)

    async def _hears_of_change(self, timeout_s: float) -> bool:
        """Wait so long, or until it has other addresses."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        changed = self._changed.is_set()
        self._changed.clear()
        return changed


def describe_failure(error: BaseException, timeout_s: float, *, before: bool) -> str:
    """Why a dial failed, that was given so long, in a person's words; `before`: a node there was linked."""
    match error:
        case TimeoutError():
            return f"no answer within {timeout_s:.0f} s: is a firewall in between?"
        case ConnectionRefusedError():
            return f"connection refused: no node listens there{' any more' if before else ''}"
        case socket.gaierror():
            return "the name does not resolve"
        case OSError() if error.strerror:
            return error.strerror.lower()
        case _:
            return str(error) or type(error).__name__
