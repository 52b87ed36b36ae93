"""Derives all times of a node from the one that is set: failure timeout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAILURE_TIMEOUT_S_MIN: Final = 0.2
FAILURE_TIMEOUT_S_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class Timing:
    """The times in seconds. `failure_timeout_s`: how long a peer may be silent before others stop counting on
    it.
    """

    failure_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if not FAILURE_TIMEOUT_S_MIN <= self.failure_timeout_s <= FAILURE_TIMEOUT_S_MAX:
            words = (
                f"the failure timeout must be {FAILURE_TIMEOUT_S_MIN:g} to {FAILURE_TIMEOUT_S_MAX:g} s,"
                f" not {self.failure_timeout_s:g}"
            )
            raise ValueError(words)

    @property
    def status_s(self) -> float:
        """The interval of STATUS, which is acknowledgement and sign of life: five in a failure timeout."""
        return self.failure_timeout_s / 5

    @property
    def turn_s(self) -> float:
        """The time that a proposer waits for answers, and that members of the next rank wait longer."""
        return self.failure_timeout_s / 5

    @property
    def silence_s(self) -> float:
        """The silence after which a link is closed."""
        return 4 * self.failure_timeout_s

    @property
    def gone_s(self) -> float:
        """The interval of checkpoints and of scrubs."""
        return 12 * self.failure_timeout_s

    def backoff_s(self, evictions: int) -> float:
        """Return for how long a node evicted for the `evictions`-th time (1 or more) stays out: doubled
        each time, so that one too slow for the run does not come and go without end.
        """
        return float(min(2 ** (evictions - 1), 64)) * self.failure_timeout_s
