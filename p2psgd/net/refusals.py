"""Peers do not want this node: is it the one that is wrong?

One peer that refuses may be wrong itself, or lie. But when nobody has accepted this node for one patience
after a refusal, it is this node that a person must mend: another run, a copied state directory, another
protocol. A node that has been started again elsewhere is refused by everybody; its old life ends the same
way, also when it was linked before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from p2psgd.errors import ExitCode

OUR_FAULT: Final = frozenset({"run", "identity", "protocol"})  # codes of REJECT that waiting does not mend


class Refusals:
    """Counts on links to prove refusals wrong; `fail` is called with a sentence if none does.

    `linked_now` tells whether any peer is linked.
    """

    def __init__(
        self, patience_s: float, *, linked_now: Callable[[], bool], fail: Callable[[str, ExitCode], None]
    ) -> None:
        self._patience_s = patience_s
        self._linked_now = linked_now
        self._fail = fail
        self._ever_linked = False
        self._timer: asyncio.TimerHandle | None = None

    def linked(self) -> None:
        """Somebody has accepted this node."""
        self._ever_linked = True

    def refused(self, code: str, words: str) -> None:
        """A peer that this node dialled has sent REJECT, or this node has refused it."""
        counts = code == "superseded" or (code in OUR_FAULT and not self._ever_linked)
        if counts and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._patience_s, self._judge, code, words)

    def close(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()

    def _judge(self, code: str, words: str) -> None:
        self._timer = None
        if self._linked_now():
            return
        if code == "superseded":
            sentence = f"this node has been started again elsewhere, so this life of it ends ({words})"
            self._fail(sentence, ExitCode.CONFIGURATION)
        elif not self._ever_linked:
            self._fail(f"no peer accepts this node: {words}", ExitCode.CONFIGURATION)
