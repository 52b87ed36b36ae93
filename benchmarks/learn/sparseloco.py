"""SparseLoCo [Sarfi et al. 2025], the algorithm of the paper in rounds over gloo.

In each round every node makes H steps of its own AdamW from the same weights, and adds the weights before
less the weights after to its error, which has decayed. Of each chunk of the error it sends the largest
entries in 2 bits each, and subtracts what it sends. The mean over nodes is subtracted from the weights: an
outer SGD with rate 1 and no momentum.

The levels of 2 bits are chosen here: a sign, and one of two magnitudes for each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.learn.job import Job
from benchmarks.learn.ways import Grouped

CHUNK: Final = 4096
INDEX_BITS: Final = 12  # of a place in a chunk
VALUE_BITS: Final = 2
LEVEL_BITS: Final = 2 * 32  # two magnitudes for each tensor
DECAY: Final = 0.95
OUTER_RATE: Final = 1.0


class SparseLoCo(Grouped):
    """Averages sparse, quantized pseudo-gradients. A run may end with a shorter round."""

    def __init__(self, job: Job, model: Any, optimizers: Sequence[Any]) -> None:
        super().__init__(job, model, optimizers)
        self._weights = parameters_to_vector(model.parameters()).detach()  # of the round's begin
        self._error = torch.zeros_like(self._weights)
        self._sizes = [each.numel() for each in model.parameters()]
        self._rounds = 0

    @property
    def sent_bytes(self) -> float:
        """By formula: each node sends its message to all others."""
        message = message_bytes(self._sizes, self.job.options["density"])
        return self._rounds * message * (self.nodes - 1)

    def stepped(self, steps: int, *, last: bool) -> None:
        if steps % self.job.options["round_steps"] and not last:
            return
        change = self._weights - parameters_to_vector(self.model.parameters()).detach()
        indices, values = compress(self._error, change, self._sizes, self.job.options["density"])
        all_indices = [torch.empty_like(indices) for _ in range(self.nodes)]
        all_values = [torch.empty_like(values) for _ in range(self.nodes)]
        torch.distributed.all_gather(all_indices, indices)
        torch.distributed.all_gather(all_values, values)
        mean = torch.zeros_like(self._weights)
        for theirs, what in zip(all_indices, all_values, strict=True):
            mean.index_add_(0, theirs, what / self.nodes)
        self._weights -= OUTER_RATE * mean
        vector_to_parameters(self._weights.clone(), self.model.parameters())
        self._rounds += 1


def compress(error: Any, change: Any, sizes: Sequence[int], density: float) -> tuple[Any, Any]:
    """Add a change to the decayed error, and take out what is sent.

    Args:
        error: (P,) what was not sent yet; changed in place.
        change: (P,) the weights before less the weights after.
        sizes: The entries of each tensor, P in all.
        density: The part of each chunk that is sent.

    Returns:
        Indices into the weights, and the quantized values there.
    """
    error.mul_(DECAY).add_(change)
    indices, values, begin = [], [], 0
    for size in sizes:
        tensor = error[begin : begin + size]
        places = largest(tensor, density)
        indices.append(begin + places)
        values.append(quantize(tensor[places]))
        begin += size
    taken, sent = torch.cat(indices), torch.cat(values)
    error[taken] -= sent
    return taken, sent


def largest(tensor: Any, density: float) -> Any:
    """Return the places of the largest magnitudes of each chunk of a flat tensor."""
    found = []
    for begin in range(0, len(tensor), CHUNK):
        chunk = tensor[begin : begin + CHUNK]
        found.append(begin + chunk.abs().topk(kept(len(chunk), density)).indices)
    return torch.cat(found)


def quantize(values: Any) -> Any:
    """Return each value as its sign and one of two magnitudes: the mean of those up to the mean magnitude,
    and the mean of those above it.
    """
    magnitudes = values.abs()
    above = magnitudes > magnitudes.mean()
    high = magnitudes[above].mean() if above.any() else magnitudes.mean()
    return values.sign() * torch.where(above, high, magnitudes[~above].mean())


def kept(entries: int, density: float) -> int:
    """Return how many entries of a chunk are sent: at least one."""
    return max(1, math.floor(density * entries))


def message_bytes(sizes: Sequence[int], density: float) -> float:
    """Return the bytes of what a node sends in a round to one other."""
    bits = 0
    for size in sizes:
        chunks = [min(CHUNK, size - begin) for begin in range(0, size, CHUNK)]
        bits += LEVEL_BITS + (INDEX_BITS + VALUE_BITS) * sum(kept(each, density) for each in chunks)
    return bits / 8
