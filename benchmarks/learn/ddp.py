"""PyTorch's DistributedDataParallel over gloo: the mean of all gradients, whole or by PowerSGD, in each step.

PowerSGD has one bucket: gloo mixes up its collectives if there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

from benchmarks.learn.job import Job
from benchmarks.learn.ways import Grouped, allreduce_bytes, weights_of


class Ddp(Grouped):
    """Whole gradients."""

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        super().__init__(job, model, optimizers)
        self.net = torch.nn.parallel.DistributedDataParallel(model)
        self._steps = 0

    @property
    def sent_bytes(self) -> float:
        """By formula."""
        return self._steps * allreduce_bytes(weights_of(self.model), self.nodes)

    def stepped(self, steps: int, *, last: bool) -> None:
        self._steps = steps


class PowerSgd(Grouped):
    """[Vogels et al. 2019] with error feedback and warm start, after some whole steps."""

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        super().__init__(job, model, optimizers)
        self.net = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=100)
        self._state = power.PowerSGDState(
            None,
            matrix_approximation_rank=job.options["rank"],
            start_powerSGD_iter=job.options["whole_steps"],
            use_error_feedback=True,
            warm_start=True,
        )
        self.net.register_comm_hook(self._state, power.powerSGD_hook)

    @property
    def sent_bytes(self) -> float:
        """By the hook's own count of entries, and by formula for the whole steps before it began."""
        whole = self.job.options["whole_steps"] * weights_of(self.model)
        return allreduce_bytes(whole + self._state.total_numel_after_compression, self.nodes)
