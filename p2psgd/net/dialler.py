"""One address that is dialled for as long as the node lives: at once, then with a jittered back-off up to
the node's patience.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from p2psgd.discovery.hosts import Address

FIRST_DELAY_S: Final = 0.1


class Dialler:
    """Keeps dialling `address` while its node is not linked; `words` says what became of the last attempt."""

    def __init__(
        self,
        address: Address,
        *,
        patience_s: float,
        now: Callable[[], float],
        dial: Callable[[Dialler], Awaitable[None]],
        linked: Callable[[int], asyncio.Future[None] | None],
    ) -> None:
        self.address = address
        self.node: int | None = None  # who answers there, once known
        self.words = ""
        self.since = now()
        self.ourselves = False
        self.answered = False  # some node has
        self._patience_s = patience_s
        self._now = now
        self._dial = dial
        self._linked = linked

    async def run(self) -> None:
        """Dial until cancelled, or until the address turns out to be this node's own."""
        delay_s = FIRST_DELAY_S
        while not self.ourselves:
            closed = None if self.node is None else self._linked(self.node)
            if closed is not None:
                linked_at = self._now()
                await asyncio.wait([closed])
                if self._now() - linked_at > self._patience_s:  # else it may fail at once every time
                    delay_s = FIRST_DELAY_S
            else:
                await self._dial(self)
                if self.node is not None and self._linked(self.node) is not None:
                    continue
            await asyncio.sleep(
                delay_s * random.uniform(0.5, 1.0)
            )  # so that nodes started together do not dial in step
            delay_s = min(2 * delay_s, self._patience_s)


def describe_failure(error: BaseException, timeout_s: float, *, before: bool) -> str:
    """Why a dial failed, that was given so long, in a person's words; `before`: a node has answered there."""
    match error:
        case TimeoutError():
            return f"no answer within {timeout_s:.0f} s: is a firewall in between?"
        case ConnectionRefusedError():
            return f"connection refused: no node listens there {'any more' if before else 'yet'}"
        case socket.gaierror():
            return "the name does not resolve"
        case OSError() if error.strerror:
            return error.strerror.lower()
        case _:
            return str(error) or type(error).__name__
