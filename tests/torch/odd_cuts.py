"""A script of two ranks whose model is cut in ways that need care: torchrun ... odd_cuts.py.

The input of a norm is cut, so that its gradients are partial sums on each rank; two stages of a pipeline are
cut further, with the same names in both; one rank of two is refused.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module

import p2psgd.torch
from p2psgd.base.errors import TrainerError

RATE = 0.125


def train_norm(type_: torch.dtype, options: dict[str, Any]) -> None:
    """Make a step, and fail unless it was made with the sum of all ranks' gradients."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6)).to(type_)
    columns = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(
        model, init_device_mesh("cpu", (2,)), {"0": SequenceParallel(sequence_dim=1), "1": columns}
    )
    norm = {"weight": model[0].weight, "bias": model[0].bias}
    x = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(2)).to(type_)
    model(x.chunk(2, 1)[dist.get_rank()].contiguous()).float().square().sum().backward()
    assert all(each.grad.placements[0].is_partial() for each in norm.values()), "else nothing is tested"
    right = {name: each.grad.full_tensor().float() for name, each in norm.items()}
    before = {name: each.detach().full_tensor().float().clone() for name, each in norm.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, foreach=False)
    used = {}
    with p2psgd.torch.attach(model, optimizer, alone=True, **options) as link:
        if options:  # what is sent to owners, once it is taken
            assert link._group is not None
            assert link._gradients is not None
            own = {
                each.parameter: each.block_name for each in link._group.held if each.owner == dist.get_rank()
            }
            flat, ranges = link._gradients._flat, link._parameters.ranges
            optimizer.register_step_pre_hook(
                lambda *_: used.update(
                    {
                        name: flat[slice(*ranges[own[each]])].clone()
                        for name, each in norm.items()
                        if each in own
                    }
                )
            )
        optimizer.step()
        if not options:
            for name, each in norm.items():
                used[name] = (before[name] - each.detach().full_tensor().float()) / RATE
        assert used
        for name, values in used.items():
            torch.testing.assert_close(values, right[name], rtol=0.02, atol=0.1, msg=f"{name}: {values}")


def attach_stages() -> None:
    """Fail unless both ranks are refused with one sentence, and keep their weights."""
    torch.manual_seed(dist.get_rank())
    stage = nn.Sequential(nn.Linear(2, 2))
    fully_shard(stage, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))["dp"])
    optimizer = torch.optim.SGD(stage.parameters())
    words = "ranks 0 and 1 have a parameter '0.bias' each, and no mesh that joins them"
    with pytest.raises(TrainerError, match=re.escape(words)):
        p2psgd.torch.attach(stage, optimizer, alone=True, part=(dist.get_rank(), 2))


def attach_one() -> None:
    """Fail unless both ranks are refused with one sentence, though only one of them is wrong."""
    stage = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(stage.parameters())
    with pytest.raises(TrainerError, match=r"rank 1 of the group: part=\(0, 2\) is refused: this is rank 1"):
        p2psgd.torch.attach(stage, optimizer, alone=True, part=(0, 2))
    stage = nn.Linear(2, 2) if dist.get_rank() else nn.LazyLinear(2)
    with pytest.raises(TrainerError, match=r"rank 0 of the group: parameter '.*' has no shape yet"):
        p2psgd.torch.attach(stage, torch.optim.SGD(stage.parameters()), part=(dist.get_rank(), 2))
    model = nn.Linear(2, 2)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters())
    control: dict[str, Any] = {"control": "/somewhere"} if dist.get_rank() == 1 else {}
    with pytest.raises(TrainerError, match=r"rank 1 of the group: .*control=\.\.\. names one"):
        p2psgd.torch.attach(model, optimizer, alone=True, **control)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    assert not children.read_text(), "the daemon of the first rank has ended"


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    attach_stages()
    attach_one()
    train_norm(torch.float32, {})
    train_norm(torch.bfloat16, {})
    train_norm(torch.float32, {"mode": "owners", "rule": "adamw"})
    dist.barrier()
    dist.destroy_process_group()
