"""DiLoCo [Douillard et al. 2023], the algorithm of the paper in rounds over gloo.

In each round every node makes H steps of its own AdamW from the same weights. The pseudo-gradient is the mean
over nodes of the weights before less the weights after. An outer SGD with Nesterov momentum takes it. The
inner optimizer's state stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.learn.job import Job
from benchmarks.learn.ways import Grouped, allreduce_bytes

OUTER_RATE: Final = 0.7
OUTER_MOMENTUM: Final = 0.9


class DiLoCo(Grouped):
    """Averages whole pseudo-gradients. A run whose steps do not divide by H ends with a shorter round."""

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        super().__init__(job, model, optimizers)
        self._weights = parameters_to_vector(model.parameters()).detach()  # of the round's begin
        self._momentum = torch.zeros_like(self._weights)
        self._rounds = 0

    @property
    def sent_bytes(self) -> float:
        """By formula."""
        return self._rounds * allreduce_bytes(self._weights.numel(), self.nodes)

    def stepped(self, steps: int, *, last: bool) -> None:
        if steps % self.job.options["round_steps"] and not last:
            return
        gradient = self._weights - parameters_to_vector(self.model.parameters()).detach()
        torch.distributed.all_reduce(gradient)
        outer_step(self._weights, gradient / self.nodes, self._momentum)
        vector_to_parameters(self._weights.clone(), self.model.parameters())
        self._rounds += 1


def outer_step(weights: Any, gradient: Any, momentum: Any) -> None:
    """Change weights and momentum as PyTorch's SGD with Nesterov momentum does."""
    momentum.mul_(OUTER_MOMENTUM).add_(gradient)
    weights.sub_(OUTER_RATE * (gradient + OUTER_MOMENTUM * momentum))
