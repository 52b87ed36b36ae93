"""What the log says of dropped connections: the same of the same host once a minute.

A peer of another run dials again and again, each time from another port, and there is one mistake to mend.
"""

from __future__ import annotations

import collections
import logging
from typing import Final

from p2psgd.errors import PeerError

INTERVAL_S: Final = 60.0
KEPT_MAX: Final = 256  # who varies the words is said as often; the log itself limits that

log = logging.getLogger("p2psgd.net")


class Complaints:
    """Of one mesh."""

    def __init__(self) -> None:
        self._said: collections.OrderedDict[tuple[str, str], tuple[float, int]] = collections.OrderedDict()

    def dropped(self, who: str, error: PeerError, now: float) -> None:
        """The connection of `who`, which ends with the address and port it came from, is dropped."""
        more = self._due(who, error, now)
        if more is not None:
            about = {"fields": {"kind": "dropped", "reason": error.reason, "address": who}}
            log.warning("dropped %s: %s: %s%s", who, error.reason, error, more, extra=about)

    def looked_at(self, address: str, answer: PeerError, now: float) -> None:
        """A doctor has asked, and its connection ends with the answer: no fault of anybody."""
        more = self._due(address, answer, now)
        if more is not None:
            about = {"fields": {"kind": "doctor", "address": address}}
            host = address.rpartition(":")[0]
            log.info("p2psgd doctor on %s looked at this node%s", host, more, extra=about)

    def _due(self, who: str, error: PeerError, now: float) -> str | None:
        """None if the same was said lately, else how often it was held back, for the end of the sentence."""
        key = (who.rpartition(":")[0], str(error))
        last, held_back = self._said.get(key, (-INTERVAL_S, 0))
        if now - last < INTERVAL_S:
            self._said[key] = (last, held_back + 1)
            return None
        self._said[key] = (now, 0)
        self._said.move_to_end(key)
        if len(self._said) > KEPT_MAX:
            self._said.popitem(last=False)
        return f" ({held_back} more since it was said last)" if held_back else ""
