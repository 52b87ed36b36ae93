"""The interface of a way to train, and its plainest case: one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.learn.job import Job


class Way:
    """Training in one process; the base class of all ways.

    A way of several nodes exchanges its numbers in `net` (DDP), in `optimizer.step()` (p2psgd) or in
    `stepped` (rounds).
    """

    rank = 0
    nodes = 1
    first = 0  # steps of this node that were made before

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        self.job, self.model, self.optimizers = job, model, optimizers
        self.net = model  # returns the loss of a batch

    @property
    def sent_bytes(self) -> float | None:
        """Return the bytes that this node has sent; None where the daemon counts them."""
        return 0.0

    def progress(self, step: int) -> tuple[int, int]:
        """Return how far the training is before this node's step `step`, and of how much."""
        return step, self.job.batches // self.nodes

    def stepped(self, steps: int, *, last: bool) -> None:
        """Do what follows after this node's `steps`-th step."""

    def finish(self) -> Any:
        """Wait for the steps of the others; return the model with the weights that the run has learnt."""
        return self.model

    def close(self) -> None:
        """Leave the run, once the model is evaluated."""


class Grouped(Way):
    """A member of a process group over gloo."""

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        super().__init__(job, model, optimizers)
        self.rank, self.nodes = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def close(self) -> None:
        torch.distributed.barrier()


def weights_of(model: Any) -> int:
    """Return the number of trained weights."""
    return sum(each.numel() for each in model.parameters())


def allreduce_bytes(entries: float, nodes: int) -> float:
    """Return what a node sends when that many float32 are summed around a ring: each part of an N-th passes
    N - 1 nodes as a sum, and N - 1 as the result.
    """
    return 4 * entries * 2 * (nodes - 1) / nodes
