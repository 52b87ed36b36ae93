"""The log of complete evaluations, from which a trainer that comes late makes up for what it has missed.

An optimiser is a function of its point of departure and of what its evaluations gave. So a node that joins,
or whose trainer was started again, replays: it asks from evaluation 1 on, and gets each from here, in no time
and without any data. The oldest results go when the log is full; at least one stays, as the next evaluation's
limits follow from it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from p2psgd.core.closure.portions import Task
from p2psgd.core.closure.scales import first_limits, next_limits
from p2psgd.wire.evaluation import pack_exponents
from p2psgd.wire.fixed_point import Exponents, Sums
from p2psgd.wire.messages import EvaluationResult

BYTES_MAX: Final = 256 * 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A complete evaluation: the sums of all portions, int64 (P + 1,), which nobody changes."""

    task: Task
    exponents: Exponents
    sums: Sums


class ResultLog:
    """The results `first` to `last`; `first` is one more than `last` before there is any."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.last = 0
        self._results: deque[Result] = deque()

    @property
    def first(self) -> int:
        """Return the number of the oldest result."""
        return self.last - len(self._results) + 1

    def find(self, evaluation: int) -> Result | None:
        """Return the result of an evaluation, if it is held."""
        place = evaluation - self.first
        return self._results[place] if 0 <= place < len(self._results) else None

    def append(self, result: Result) -> None:
        """Keep a result; it is the next one, or all before it are dropped."""
        if result.task.evaluation != self.last + 1:
            self._results.clear()
        self.last = result.task.evaluation
        self._results.append(result)
        while len(self._results) > 1 and len(self._results) * result.sums.nbytes > self.bytes_max:
            self._results.popleft()

    def limits_after(self, evaluation: int, groups: int) -> Exponents | None:
        """Return the limits that follow from this evaluation, 0 before the first; None if it is not held."""
        if evaluation == 0:
            return first_limits(groups)
        result = self.find(evaluation)
        return None if result is None else next_limits(result.task.limits, result.exponents)

    def announce(self, evaluation: int) -> EvaluationResult | None:
        """Return the message about a result; None if it is not held."""
        result = self.find(evaluation)
        if result is None:
            return None
        return EvaluationResult(
            evaluation=evaluation,
            first=self.first,
            last=self.last,
            digest=result.task.digest,
            portions=result.task.portions,
            limits=pack_exponents(result.task.limits),
            exponents=pack_exponents(result.exponents),
        )
