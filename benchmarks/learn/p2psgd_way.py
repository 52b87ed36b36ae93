"""p2psgd as a script uses it: `attach`, and a daemon beside each trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import p2psgd.torch
from benchmarks.learn.job import Job
from benchmarks.learn.ways import Way


class P2psgd(Way):
    """Updates go when they are ready; the daemon counts the bytes."""

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        super().__init__(job, model, optimizers)
        self._link: Any = p2psgd.torch.attach(model, optimizers, **job.options)
        self.rank, self.nodes, self.first = self._link.rank, self._link.world_size, self._link.steps

    @property
    def sent_bytes(self) -> None:
        """Return None: the report of `p2psgd local` has it."""
        return None

    def finish(self) -> Any:
        """Wait for the sends of the others and leave: the model then has the replica's weights, and this
        node's buffers.
        """
        self._link.wait_for_peers(self.job.batches // self.nodes)
        self._link.close()
        return self.model


SLOWED: Final = 0.25  # of the speed of the others
LAST_UPDATES_S: Final = 2.0  # of silence, after which all have ended


class P2psgdBesideSlow(P2psgd):
    """The last node computes at a quarter of the speed; all go on until the run has used all batches."""

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        super().__init__(job, model, optimizers)
        self._began = time.monotonic()

    def progress(self, step: int) -> tuple[int, int]:
        return self._link.run_steps, self.job.batches

    def stepped(self, steps: int, *, last: bool) -> None:
        if self.rank == self.nodes - 1:
            time.sleep((time.monotonic() - self._began) * (1 / SLOWED - 1))
        self._began = time.monotonic()

    def finish(self) -> Any:
        self._link.wait_for_peers(self.job.batches, silence_s=LAST_UPDATES_S)
        self._link.close()
        return self.model
