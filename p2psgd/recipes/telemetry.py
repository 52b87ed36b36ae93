"""Telemetry of a trainer: the parts of a step, and its progress reports."""

from __future__ import annotations

import collections
import enum
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol

from p2psgd.client.link import Link

# ----------------------------------------------------------------------------
# Where the time of a trainer's steps goes: computing, waiting, adding and sending.
#
# The four are of the trainer's own thread and make up the whole step. What its daemon does meanwhile, adding
# up contributions and handing frames to the network, is counted beside them: where it overlaps with computing
# it costs the step nothing, and waiting is what is left of it. A trace gets every piece too.


NS = 1e-9
WAIT_MIN_NS = 50_000  # less is the looking itself


class Part(enum.StrEnum):
    """Kinds of work that a piece of a step counts as."""

    COMPUTING = "computing"
    WAITING = "waiting"  # for others
    ADDING = "adding"  # what the others sent to the weights
    SENDING = "sending"  # finding what to send, coding it, giving it to the daemon


class Trace(Protocol):
    """Receives what the trainer does when, in nanoseconds (benchmarks/trace.py writes it to a file)."""

    def span(self, name: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """Trace something that the trainer did all this time; `kind` is one word, for filters and colours."""

    def count(self, name: str, at_ns: int, value: float) -> None:
        """Trace a figure of the daemon, valid from here until the next one of this name."""


@dataclass(frozen=True, slots=True)
class Split:
    """A number of steps, and what they took together. The daemon's are beside the others, within the same
    time.
    """

    timed_steps: int = 0
    computing_s: float = 0.0
    waiting_s: float = 0.0
    adding_s: float = 0.0
    sending_s: float = 0.0
    daemon_adding_s: float = 0.0
    daemon_sending_s: float = 0.0


class Piece:
    """A with block that is timed. A class, since it takes half the time of a generator's context."""

    __slots__ = ("_times", "_waited_s", "begin", "name", "part")

    def __init__(self, times: StepTimes, name: str, part: Part) -> None:
        self._times, self.name, self.part = times, name, part
        self._waited_s = 0.0
        self.begin = 0

    def __enter__(self) -> None:
        self._waited_s = self._times.waited_s()
        self.begin = self._times.clock_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._times.clock_ns()
        self._times.count(self, end, self._times.waited_s() - self._waited_s)


class StepTimes:
    """Times the steps of one trainer on its link."""

    def __init__(
        self, link: Link, trace: Trace | None = None, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._link, self._trace, self.clock_ns = link, trace, clock_ns
        self._steps = self._total_ns = 0
        self._parts_ns = dict.fromkeys(Part, 0)
        self._daemon = [0.0, 0.0]

    @property
    def split(self) -> Split:
        """Return the split of the time of all steps so far."""
        others = [self._parts_ns[part] for part in (Part.WAITING, Part.ADDING, Part.SENDING)]
        own = [self._total_ns - sum(others), *others]
        return Split(self._steps, *(spent * NS for spent in own), *self._daemon)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a whole step; what is in no `part` of it counts as computing."""
        daemon = self._daemon_s()
        begin = self.clock_ns()
        yield
        end = self.clock_ns()
        self._steps += 1
        self._total_ns += end - begin
        worked = [now - before for now, before in zip(self._daemon_s(), daemon, strict=True)]
        self._daemon = [total + more for total, more in zip(self._daemon, worked, strict=True)]
        if self._trace is None:
            return
        self._trace.span(name, "step", begin, end)
        for word, spent_s in zip(("adding", "sending"), worked, strict=True):
            share = 100 * spent_s / max(NS, (end - begin) * NS)
            self._trace.count(f"daemon {word}, % of the step", begin, round(share, 2))

    @contextmanager
    def outside_steps(self, name: str) -> Iterator[None]:
        """Trace something that happens outside all steps; it is counted nowhere else."""
        begin = self.clock_ns()
        yield
        if self._trace is not None:
            self._trace.span(name, "outside-steps", begin, self.clock_ns())

    def part(self, name: str, part: Part = Part.COMPUTING) -> Piece:
        """Time a piece of a step, for a with block. What the link waits in one of adding or sending counts as
        waiting, and is shown at its end. Only pieces of computing may have others in them.
        """
        return Piece(self, name, part)

    def waited_s(self) -> float:
        """Return the seconds that the link has waited so far."""
        return self._link.waited_s

    def count(self, piece: Piece, end: int, waited_s: float) -> None:
        """Count a piece at its end, in which the link has waited for `waited_s` seconds."""
        part, begin, waited = piece.part, piece.begin, 0
        if part is Part.ADDING or part is Part.SENDING:
            waited = min(end - begin, round(waited_s / NS))
            waited = waited if waited >= WAIT_MIN_NS else 0
        self._parts_ns[part] += end - begin - waited
        if waited:
            self._parts_ns[Part.WAITING] += waited
        if self._trace is not None:
            self._trace.span(piece.name, part, begin, end)
            if waited:
                self._trace.span("waiting", Part.WAITING, end - waited, end)

    def show(self, name: str, begin_ns: int) -> None:
        """Show a piece of what is being computed, which ends now, in the trace alone."""
        if self._trace is not None:
            self._trace.span(name, Part.COMPUTING, begin_ns, self.clock_ns())

    def figures(self) -> dict[str, float]:
        """Return the split as figures of a report."""
        return asdict(self.split)

    def _daemon_s(self) -> tuple[float, float]:
        return self._link.adding_s, self._link.sending_s


# ----------------------------------------------------------------------------
# What a trainer reports to its daemon about itself, at most twice a second.


REPORT_EVERY_S = 0.5
RATE_REPORTS = 10  # the rate looks back over so many reports, some 5 s
LOSS_MEMORY = 50  # mini-batches that the running mean of the loss looks back over


class Progress:
    """Counts samples, averages the loss, and reports."""

    def __init__(
        self,
        link: Link,
        samples: int,
        clock: Callable[[], float] = time.monotonic,
        loss: float | None = None,
        *,
        more: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Go on after the `samples` that earlier trainers of this node used, and from their running mean
        `loss`.

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
        """Return the samples per second, over the time in training between the last few reports."""
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
