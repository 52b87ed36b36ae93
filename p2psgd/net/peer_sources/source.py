"""A source of peers' addresses: a function that returns them and may be asked again.

The function may wait, for a disk, a command or a server, so it runs in a thread of its own, one at a time: a
question that has no answer yet is not asked a second time. A node waits for ANSWER_S at most.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from p2psgd.base.aio import in_daemon_thread
from p2psgd.base.errors import ExitCode, UsageError
from p2psgd.net.address import Address

ANSWER_S: Final = 15.0  # more than a command may take, so that the command's own sentence comes first
AGAIN_TIMEOUTS: Final = 12  # failure timeouts between two questions, as between two look-ups of a name


def again_s(failure_timeout_s: float) -> float:
    """Return the seconds until the next question, jittered so that nodes do not ask in step."""
    return AGAIN_TIMEOUTS * failure_timeout_s * random.uniform(0.5, 1.0)


@dataclass(eq=False)
class PeerSource:
    """A source, as --peers names it.

    Args:
        text: Names the source, for people; without what may be secret.
        ask: Returns the addresses now; UsageError with one sentence if it cannot. It may block.
        ordered: All nodes of a run get the same list in the same order, so that a place in it is a rank.
        again: It is asked again every AGAIN_TIMEOUTS failure timeouts; else at SIGHUP only.
        names_file: The text is the path of a file, to which a person may add a line.
        given: The words of --peers as they were given, for another daemon.
    """

    text: str
    ask: Callable[[], tuple[Address, ...]]
    ordered: bool = False
    again: bool = False
    names_file: bool = False
    given: str = ""
    _open: asyncio.Task[tuple[Address, ...]] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text

    async def addresses(self) -> tuple[Address, ...]:
        """Ask, or join the question that has no answer yet; UsageError if there is no answer in time."""
        if self._open is None:
            work = in_daemon_thread("peers", self.ask)
            self._open = asyncio.get_running_loop().create_task(work, name=f"ask {self.text}")
            self._open.add_done_callback(self._answered)
        asked = self._open
        await asyncio.wait([asked], timeout=ANSWER_S)
        if not asked.done():
            words = f"{self.text} has not answered within {ANSWER_S:.0f} s: is what it asks out of reach?"
            raise UsageError(words, ExitCode.TEMPORARY)
        return asked.result()

    def _answered(self, asked: asyncio.Task[tuple[Address, ...]]) -> None:
        self._open = None
        if not asked.cancelled():
            asked.exception()  # has been seen, also if no caller waits for it
