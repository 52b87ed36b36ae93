"""Handwritten digits on nodes of several processes each: torchrun within a node, p2psgd between nodes.

Two nodes of two processes on this machine:
`p2psgd local -n 2 --trainer "torchrun --standalone --nproc-per-node 2 torchrun.py [SEED]"`.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import p2psgd.torch
from p2psgd.recipes.datasets import DATASETS

EPOCHS = 30

dist.init_process_group("gloo")  # "nccl" for GPUs, with a device for each process
process, processes = dist.get_rank(), dist.get_world_size()  # of this node

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
arrays = np.load(DATASETS / "digits.npz")
train, test = (
    TensorDataset(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]))
    for part in ("train", "test")
)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def from_first(*numbers: int) -> list[int]:
    """Return the numbers of this node's first process, in all of them."""
    shared = torch.tensor(numbers)
    dist.broadcast(shared, 0)
    return [int(number) for number in shared]


# The first process attaches, for all, and gives the others the weights and their part of the data.
link = p2psgd.torch.attach(model, optimizer) if process == 0 else None
rank, world_size, steps = from_first(*((link.rank, link.world_size, link.steps) if link else (0, 0, 0)))
replicated = DistributedDataParallel(model)  # which begins with the weights of the first process
part = DistributedSampler(train, num_replicas=world_size * processes, rank=rank * processes + process)
loader = DataLoader(train, batch_size=16, sampler=part)

stopping = 0
for epoch in range(steps // len(loader), EPOCHS):  # after a restart: about where the node was
    part.set_epoch(epoch)
    for inputs, labels in loader:
        (stopping,) = from_first(int(link is not None and link.stopping))
        if stopping:
            break
        loss = nn.functional.cross_entropy(replicated(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # averages the gradients of this node's processes
        if link:
            optimizer.step()  # sends what is large, and applies what other nodes have sent
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
    if stopping:
        break
    if link:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

dist.destroy_process_group()
if link:
    link.close()
    with torch.no_grad():
        inputs, labels = test.tensors
        print(f"test accuracy {(model(inputs).argmax(1) == labels).float().mean().item():.4f}")
