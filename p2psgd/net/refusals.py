"""Peers do not want this node: is it the one that is wrong?

One peer that trains another run is that peer's trouble, or ours: nobody can tell. But when nobody accepts
this node for one patience after the first refusal, it is this node that a person must mend. A newer life of
the same node always wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from p2psgd.errors import ExitCode

OUR_FAULT: Final = frozenset({"run", "identity", "protocol"})  # codes of REJECT that waiting does not mend


class Refusals:
    """Counts on links to prove refusals wrong; `fail` is called with a sentence if none comes up."""

    def __init__(self, patience_s: float, fail: Callable[[str, ExitCode], None]) -> None:
        self._patience_s = patience_s
        self._fail = fail
        self._ever_linked = False
        self._timer: asyncio.TimerHandle | None = None

    def linked(self) -> None:
        """Somebody has accepted this node."""
        self._ever_linked = True

    def refused(self, code: str, words: str) -> None:
        """A peer that this node dialled has sent REJECT, or this node has refused it."""
        if code == "superseded":
            sentence = f"this node has been started again elsewhere, so this life of it ends ({words})"
            self._fail(sentence, ExitCode.CONFIGURATION)
        elif code in OUR_FAULT and not self._ever_linked and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._patience_s, self._give_up, words)

    def close(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self, words: str) -> None:
        if not self._ever_linked:
            self._fail(f"no peer accepts this node: {words}", ExitCode.CONFIGURATION)
