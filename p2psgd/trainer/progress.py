"""What a trainer tells its daemon about itself, at most twice a second."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

REPORT_EVERY_S = 0.5
RATE_REPORTS = 10  # the rate looks back over so many reports, some 5 s
LOSS_MEMORY = 50  # mini-batches that the running mean of the loss looks back over


class Reports(Protocol):
    """Where the words go: a link."""

    def report(self, **fields: object) -> None:
        """Send one report; never waits."""


class Progress:
    """Counts samples, averages the loss, and reports."""

    def __init__(
        self,
        link: Reports,
        samples: int,
        clock: Callable[[], float] = time.monotonic,
        loss: float | None = None,
        *,
        more: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`samples` were used by earlier lives of this trainer, whose mean `loss` the mean goes on from.

        `more()` makes further figures of a report.
        """
        self._link = link
        self._more = more
        self._clock = clock
        self._samples = samples
        self.loss = loss  # the running mean
        self._epoch = 0.0
        self._test_accuracy: float | None = None
        self._training_s = 0.0  # time from mini-batch to mini-batch, waits left out
        self._trained = 0  # samples of this life
        self._marks = collections.deque([(0.0, 0)], maxlen=RATE_REPORTS)  # both, at the last reports
        self._mark: float | None = None
        self._due = -math.inf

    def trained(self, samples: int, loss: float, epoch: float) -> None:
        """Count one mini-batch and report if it is time."""
        now = self._clock()
        if self._mark is not None:
            self._training_s += now - self._mark
            self._trained += samples
        self._mark = now
        self._samples += samples
        self._epoch = epoch
        self.loss = loss if self.loss is None else self.loss + (loss - self.loss) / LOSS_MEMORY
        if now >= self._due:
            self._report("")

    def waits(self, words: str) -> None:
        """Say why nothing is trained; the time is not counted as training."""
        self._mark = None
        if self._clock() >= self._due:
            self._report(words)

    def ends(self, test_accuracy: float | None) -> None:
        """Report the last time, at once."""
        self._test_accuracy = test_accuracy
        self._report("")

    def _samples_per_s(self) -> float:
        """Over the time in training between the last few reports."""
        self._marks.append((self._training_s, self._trained))
        (begin_s, before), (end_s, after) = self._marks[0], self._marks[-1]
        return (after - before) / (end_s - begin_s) if end_s > begin_s else 0.0

    def _report(self, waits: str) -> None:
        self._due = self._clock() + REPORT_EVERY_S
        self._link.report(
            samples=self._samples,
            samples_per_s=self._samples_per_s(),
            loss=self.loss,
            test_accuracy=self._test_accuracy,
            waits=waits,
            epoch=self._epoch,
            **self._more(),
        )
