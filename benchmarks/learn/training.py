"""The training that all ways share: model, samples, optimizer, schedule, clipping and the test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from benchmarks.learn.job import Job
from benchmarks.learn.ways import Way

CLIP: Final = 1.0  # norm of a step's gradient
WARM_UP: Final = 1 / 20  # of the steps
LAST_RATE: Final = 0.1  # of the full rate, at the end of the cosine
TEST_ROWS: Final = 64  # in one pass


def load(job: Job) -> tuple[Any, Any, Any]:
    """Return the model with its initial weights, the rows to train on, and those to test on."""
    torch.manual_seed(job.seed)
    match job.model:
        case "gpt":
            from benchmarks.learn import gpt  # noqa: PLC0415

            return (
                gpt.GPT(width=job.width, layers=job.layers, context=job.context),
                *gpt.load(job.context),
            )
        case "digits":
            from benchmarks.learn import digits  # noqa: PLC0415

            return digits.DigitsNet(), *digits.load()
        case other:
            raise ValueError(f"there is no model {other!r}")


def make_optimizers(job: Job, model: Any) -> list[Any]:
    """Return them with the betas and momentum of one machine."""
    match job.optimizer:
        case "adamw":
            return [_adamw(job, model.parameters())]
        case "muon":
            layers = model.layers.layers.parameters()
            matrices = {id(each): each for each in layers if each.dim() == 2}
            others = [each for each in model.parameters() if id(each) not in matrices]
            adjusted = {"adjust_lr_fn": "match_rms_adamw"}  # so that one rate does for both
            return [
                torch.optim.Muon(matrices.values(), lr=job.rate, weight_decay=0.1, **adjusted),
                _adamw(job, others),
            ]
        case "sgd":
            return [torch.optim.SGD(model.parameters(), lr=job.rate, momentum=0.9, weight_decay=1e-4)]
        case other:
            raise ValueError(f"there is no optimizer {other!r}")


def _adamw(job: Job, parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=job.rate, betas=(0.9, 0.99), weight_decay=0.1)


def factor(step: int, steps: int) -> float:
    """Return the part of the full rate that step `step` of `steps` has: a warm-up, then a cosine."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2


def order(job: Job, rows: int) -> Any:
    """Return the rows of more than all batches, (batches, batch): permutations, one after the other. The same
    for all ways.
    """
    generator = torch.Generator().manual_seed(job.seed)
    batches = 2 * job.batches  # a fast node takes more than its part beside a slow one
    wanted = batches * job.batch
    epochs = -(-wanted // rows)
    drawn = torch.cat([torch.randperm(rows, generator=generator) for _ in range(epochs)])
    return drawn[:wanted].view(batches, job.batch)


def train(job: Job, way: Way, model: Any, optimizers: Sequence[Any], rows: Any) -> int:
    """Make this node's steps, and return their number: in each, all nodes together take the next `nodes`
    batches.
    """
    batches = order(job, len(rows))
    for step in itertools.count(way.first):
        made, steps = way.progress(step)
        if made >= steps:
            return step
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = job.rate * factor(made, steps)
            optimizer.zero_grad()
        way.net(rows[batches[step * way.nodes + way.rank]]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer in optimizers:
            optimizer.step()
        way.stepped(step + 1, last=step + 1 == steps)
    raise AssertionError


def evaluate(model: Any, rows: Any) -> tuple[float, float | None]:
    """Return loss and accuracy on the test rows; None where accuracy means nothing."""
    model.eval()
    with torch.no_grad():
        sums = [float(model(part)) * len(part) for part in rows.split(TEST_ROWS)]
        accuracy = model.accuracy(rows) if hasattr(model, "accuracy") else None
    return sum(sums) / len(rows), accuracy
