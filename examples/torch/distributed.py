"""The same by p2psgd, on four nodes: `p2psgd local -n 4 --trainer "python distributed.py [SEED]"`."""

import sys

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

import p2psgd.torch
from p2psgd.recipes.datasets import DATASETS

EPOCHS = 120

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
arrays = np.load(DATASETS / "digits.npz")
train, test = (
    TensorDataset(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]))
    for part in ("train", "test")
)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
scheduler = CosineAnnealingLR(optimizer, EPOCHS)

link = p2psgd.torch.attach(model, optimizer, keep=[scheduler])
loader = DataLoader(train, batch_size=32, sampler=link.sampler(train))
for epoch in range(link.steps // len(loader), EPOCHS):
    loader.sampler.set_epoch(epoch)
    while scheduler.last_epoch < epoch:  # in a script that was started again
        scheduler.step()
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scheduler.step()
    link.report(loss=loss.item(), epoch=epoch + 1)
    print(f"epoch {epoch}: loss {loss.item():.4f}")
link.close()

with torch.no_grad():
    inputs, labels = test.tensors
    accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
print(f"test accuracy {accuracy:.4f}")
