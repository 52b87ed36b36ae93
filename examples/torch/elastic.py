"""Handwritten digits by DistributedDataParallel alone, on nodes that come and go.

torchrun starts the workers of all nodes anew whenever the members of the run change; they go on with the
newest checkpoint that one of them has. Three nodes on this machine:
`p2psgd local -n 3 --trainer "torchrun --rdzv-backend p2psgd --nnodes 1:3 --max-restarts 100 elastic.py"`.
Arguments: [EPOCHS [CHECKPOINT]].
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from p2psgd.recipes.datasets import DATASETS

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
CHECKPOINT = Path(sys.argv[2] if len(sys.argv) > 2 else "elastic.pt")  # on each machine's own disk

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(1)
arrays = np.load(DATASETS / "digits.npz")
train, test = (
    TensorDataset(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]))
    for part in ("train", "test")
)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

# The epochs done, the weights and the momentum, of the process that has the most epochs.
kept = [torch.load(CHECKPOINT)] if CHECKPOINT.exists() else [(0, model.state_dict(), optimizer.state_dict())]
epochs: list[int] = [0] * world_size
dist.all_gather_object(epochs, kept[0][0])
dist.broadcast_object_list(kept, src=epochs.index(max(epochs)))
begun, weights, momentum = kept[0]
model.load_state_dict(weights)
optimizer.load_state_dict(momentum)

replicated = DistributedDataParallel(model)
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=16, sampler=sampler)
for epoch in range(begun, EPOCHS):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(replicated(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if os.environ["LOCAL_RANK"] == "0":
        written = CHECKPOINT.with_suffix(f".{os.getpid()}")
        torch.save((epoch + 1, model.state_dict(), optimizer.state_dict()), written)
        written.replace(CHECKPOINT)
    if rank == 0:
        print(f"epoch {epoch} in {world_size} processes: loss {loss.item():.4f}", flush=True)

dist.destroy_process_group()
with torch.no_grad():
    inputs, labels = test.tensors
    accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
weights_sum = sum(parameter.double().sum().item() for parameter in model.parameters())
print(f"test accuracy {accuracy:.4f}, sum of the weights {weights_sum!r}")
