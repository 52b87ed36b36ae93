"""The loop that all ways share: the same walk over the same samples, the same loss, clipping and rate."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from benchmarks.rivals.cases import Training
from benchmarks.rivals.job import Job, Notes
from benchmarks.rivals.weights import weights_of
from p2psgd.recipes.schedule import Order, Walk


class Stopwatch:
    """Adds up the seconds of the clock that its with blocks, or its calls of `start` and `stop`, enclose."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0

    def start(self) -> None:
        self._begin = time.monotonic()

    def stop(self) -> None:
        self.seconds += time.monotonic() - self._begin

    def __enter__(self) -> None:
        self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def training_of(job: Job) -> Training:
    """Return the job's task, in one thread."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    return job.task.training(job.seed)


def train(
    job: Job,
    notes: Notes,
    training: Training,
    optimizer: Any,
    *,
    net: Callable[..., Any],
    share: tuple[int, int],
    first: int = 0,
    step: Callable[[], Any] | None = None,
    zero: Callable[[], Any] | None = None,
    unsynced: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    computing: Stopwatch | None = None,
) -> None:
    """Train until this process is ended.

    Args:
        job: The job of this host.
        notes: Where this host notes its mini-batches.
        training: The model and the samples.
        optimizer: Holds the rate, by its first parameter group.
        net: The model, or what wraps it.
        share: This host's number and the number of hosts, by which samples are shared out.
        first: The mini-batches that were made before.
        step: Updates the model. Default: the optimizer's step.
        zero: Forgets the gradients. Default: the optimizer's zero_grad.
        unsynced: The context of a mini-batch whose gradients are only added to those of the next. There are
            `accumulate` - 1 such mini-batches, of the way's options, and then a step.
        computing: Counts the time of forward and backward passes and of clipping. Default: nothing does.
    """
    torch: Any = importlib.import_module("torch")
    task, (own, shares) = job.task, share
    accumulate = job.options.get("accumulate", 1)
    walk = Walk(training.rows, task.batch, own, shares, warm_steps=0, positions=None)
    order = Order(training.rows, job.seed)
    order.rows(walk.at(first))  # the permutation is not what is compared
    computed = computing or contextlib.nullcontext()
    step, zero = step or optimizer.step, zero or optimizer.zero_grad
    notes.await_go()
    for number in itertools.count(first):
        rows = order.rows(walk.at(number))
        if (number - first) % accumulate == 0:
            zero()
        steps = (number - first + 1) % accumulate == 0
        with contextlib.nullcontext() if steps else unsynced(), computed:
            (training.loss(net, rows) / accumulate).backward()
        if steps:
            if task.clip is not None:
                with computed:
                    torch.nn.utils.clip_grad_norm_(training.model.parameters(), task.clip)
            samples = number * task.batch * shares
            optimizer.param_groups[0]["lr"] = task.rate(job.setting["rate"], samples)
            step()
        notes.made(
            number + 1,
            lambda: weights_of(training.model),
            computed_s=computing.seconds if computing else None,
        )
