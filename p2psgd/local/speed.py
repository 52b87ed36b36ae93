"""How fast a node trained, seen from outside: samples counted in its statuses over the time between."""

from __future__ import annotations


class Speed:
    """Mean samples per second between the first and the last look that found more samples than before."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def note(self, samples: int, now: float) -> None:
        """Take in the number of samples that a status counts."""
        if samples > self._last[1]:
            self._last = (now, samples)
            self._first = self._first or self._last

    @property
    def samples_per_s(self) -> float | None:
        """The mean; None until two looks have found the node training."""
        if self._first is None or self._first == self._last:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
