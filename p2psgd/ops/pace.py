"""How fast a trainer sends, as its daemon counts it: known also of a script that reports nothing."""

from __future__ import annotations

from collections import deque
from typing import Final

EVERY_S: Final = 1.0
LOOKS_MAX: Final = 6  # the rate is a mean over five seconds


class Pace:
    """Mini-batches per second, from looks at their number."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=LOOKS_MAX)

    def is_due(self, now: float) -> bool:
        """Whether it is time for another look; `now` in seconds, monotonic."""
        return not self._looks or now - self._looks[-1][0] >= EVERY_S

    def look(self, mini_batches: int, now: float) -> None:
        self._looks.append((now, mini_batches))

    def begin(self) -> None:
        """Another trainer has come."""
        self._looks.clear()

    @property
    def per_s(self) -> float | None:
        """None until two looks."""
        if len(self._looks) < 2:
            return None
        (began, first), (end, last) = self._looks[0], self._looks[-1]
        return (last - first) / (end - began)
