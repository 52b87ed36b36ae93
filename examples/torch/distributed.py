"""Handwritten digits on several nodes: plain.py, with five lines of p2psgd.

Four nodes on this machine: `p2psgd local -n 4 --trainer "python distributed.py [SEED [FILE]]"`.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import p2psgd.torch
from p2psgd.recipes.datasets import DATASETS

EPOCHS = 60

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
arrays = np.load(DATASETS / "digits.npz")
train, test = (
    TensorDataset(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]))
    for part in ("train", "test")
)
model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)


def evaluate() -> float:
    model.eval()
    with torch.no_grad():
        inputs, labels = test.tensors
        right = (model(inputs).argmax(1) == labels).float().mean().item()
    model.train()
    return right


link = p2psgd.torch.attach(model, optimizer)
loader = DataLoader(train, batch_size=32, sampler=link.sampler(train))
scheduler = OneCycleLR(optimizer, max_lr=0.02, total_steps=EPOCHS * len(loader), cycle_momentum=False)
for epoch in link.epochs(EPOCHS, loader, step_scheduler=scheduler):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {evaluate():.4f}")

print(f"test accuracy {evaluate():.4f}")
if len(sys.argv) > 2 and link.rank == 0:
    torch.save(model.state_dict(), sys.argv[2])
