"""A script whose small model is cut over the ranks of its group, and which notes what became of it.

torchrun --nproc-per-node 2 tests/torch/group_trainer.py KIND DIRECTORY [--steps N] [--attach JSON] ...

DIRECTORY gets NODE.npz from the first rank of each group: the whole weights, by name, and how long the
longest pause of the group was. Shapes are such that shards are uneven, and some empty.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import p2psgd.torch

IN, HIDDEN, OUT, BATCH = 7, 10, 3, 8
EQUAL_EVERY = 8  # steps


class Net(nn.Module):  # type: ignore[misc]
    """Two matrices, a norm between them, and a single number at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(IN, HIDDEN), nn.LayerNorm(IN)
        self.narrow, self.last = nn.Linear(HIDDEN, OUT), nn.Linear(OUT, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wide is not None:
            x = torch.tanh(self.wide(self.norm(x)))
        return x if self.narrow is None else self.last(self.narrow(x))


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs.float() - targets) ** 2).mean()


def cut(kind: str, model: Net) -> None:
    """Cut the model over the ranks in one of the ways that PyTorch has."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    match kind:
        case "fsdp":
            fully_shard(model)
        case "mixed":
            fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        case "bfloat16":
            fully_shard(model.to(torch.bfloat16))
        case "hybrid":  # HSDP: shards over two ranks, twice
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "shard")))
        case "tensor" | "columns":
            mesh = init_device_mesh("cpu", (ranks,))
            second = {"narrow": RowwiseParallel()} if kind == "tensor" else {}
            gathered = {} if kind == "tensor" else {"output_layouts": Replicate()}
            parallelize_module(model, mesh, {"wide": ColwiseParallel(**gathered), **second})
        case "both":  # FSDP over what tensor parallelism has cut
            mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
            parallelize_module(model, mesh["tp"], {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
            fully_shard(model, mesh=mesh["dp"])
        case "pipeline":
            if rank > 0:
                model.wide = model.norm = None
            else:
                model.narrow = model.last = None
        case _:
            raise ValueError(kind)


def whole(model: Net) -> dict[str, torch.Tensor]:
    """Return the whole parameters by name; of a stage, its own."""
    return {
        name: (each.full_tensor() if isinstance(each, DTensor) else each).detach().float().clone()
        for name, each in model.named_parameters()
    }


def check_equal(model: Net) -> None:
    """Fail unless what all ranks hold whole is the same on all of them."""
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            everywhere = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
            dist.all_gather(everywhere, parameter.detach())
            assert all(torch.equal(each, everywhere[0]) for each in everywhere), name


def check_checkpoint(model: Net, directory: Path) -> None:
    """Save the model by torch.distributed.checkpoint, load it, and fail unless it is the same."""
    before = whole(model)
    dcp.save({"model": model.state_dict()}, checkpoint_id=directory)
    state = {"model": {name: torch.zeros_like(each) for name, each in model.state_dict().items()}}
    dcp.load(state, checkpoint_id=directory)
    model.load_state_dict(state["model"])
    for name, values in whole(model).items():
        assert torch.equal(values, before[name]), name


def step_of(kind: str, model: Net) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return what computes the gradients of a batch."""
    if kind != "pipeline":
        return lambda x, y: loss_of(model(x), y).backward()
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: PLC0415 - takes 0.6 s

    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule = ScheduleGPipe(
        PipelineStage(model, rank, ranks, torch.device("cpu")), n_microbatches=2, loss_fn=loss_of
    )

    def run(x: torch.Tensor, y: torch.Tensor) -> None:
        schedule.step(*((x,) if rank == 0 else ()), **({"target": y} if rank == ranks - 1 else {}))

    return run


def last_step(asked: argparse.Namespace) -> float:
    """Return how many steps this run has, or infinity before they are known."""
    if asked.steps_file is None:
        return float(asked.steps)
    return int(asked.steps_file.read_text()) if asked.steps_file.exists() else math.inf


def meet() -> None:
    """Begin the group of this process, as torchrun or ranks.py has started it."""
    if file := os.environ.get("GROUP_FILE"):
        rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    else:
        dist.init_process_group("gloo")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--steps-file", type=Path, help="end at the step that is read here, once it is there")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of each step")
    parser.add_argument("--attach", type=json.loads, default={})
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    meet()
    model = Net()
    cut(asked.kind, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    if asked.kind == "pipeline":
        asked.attach["part"] = dist.get_rank(), dist.get_world_size()
    if asked.attach.get("rule"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with p2psgd.torch.attach(model, optimizer, density=0.2, **asked.attach) as link:
        begun = [None] * dist.get_world_size()
        dist.all_gather_object(begun, link.steps)
        assert len(set(begun)) == 1, begun
        compute, pause, last = step_of(asked.kind, model), 0.0, None
        target = torch.randn(IN, 1, generator=torch.Generator().manual_seed(3))
        while link.steps < last_step(asked) and not link.stopping:
            seed = 1 + link.rank + link.world_size * link.steps
            x = torch.randn(BATCH, IN, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            compute(x.bfloat16() if asked.kind == "bfloat16" else x, x @ target)
            optimizer.step()
            if asked.kind in ("tensor", "columns") and link.steps % EQUAL_EVERY == 0:
                check_equal(model)
            time.sleep(asked.pace)
            now = time.monotonic()
            pause, last = max(pause, now - (last or now)), now
        name = link.link.node
        stopped = link.stopping
    if not stopped:
        values = {name: each.numpy() for name, each in whole(model).items()}
        if asked.kind == "pipeline":
            stages: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(stages, values)
            values = {name: each for stage in stages for name, each in stage.items()}
        elif asked.kind == "fsdp":
            check_checkpoint(model, asked.directory / f"{name}.checkpoint")
        if dist.get_rank() == 0:
            np.savez(asked.directory / f"{name}.npz", longest_pause=pause, **values)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
