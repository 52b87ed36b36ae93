"""A script that trains a net on the digits: `owners_trainer.py OPTIMIZER RATE RULE ROUNDS LOCAL_STEPS`.

RULE, ROUNDS and LOCAL_STEPS are as of attach; without a rule it trains in this process alone.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset

import p2psgd.torch
from p2psgd.recipes.datasets import DATASETS

EPOCHS = 12
SETTINGS = {"SGD": {"momentum": 0.9, "nesterov": True}}  # by optimizer


def main(name: str, rate: float, rule: str, rounds: bool, local_steps: int | None) -> None:
    """Train with a rate that falls to a tenth, and print the loss on the test samples."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    arrays = np.load(DATASETS / "digits.npz")
    train, test = (
        TensorDataset(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]))
        for part in ("train", "test")
    )
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=rate, **SETTINGS.get(name, {}))
    if rule:
        link = p2psgd.torch.attach(
            model, optimizer, mode="owners", rule=rule, rounds=rounds, local_steps=local_steps
        )
        loader = DataLoader(train, batch_size=32, sampler=link.sampler(train))
    else:
        loader = DataLoader(train, batch_size=32, shuffle=True)
    scheduler = LinearLR(optimizer, 1.0, 0.1, total_iters=EPOCHS)
    for _ in link.epochs(EPOCHS, loader, epoch_scheduler=scheduler) if rule else range(EPOCHS):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        inputs, labels = test.tensors
        print(f"test loss {nn.functional.cross_entropy(model(inputs), labels).item():.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4] == "rounds", int(sys.argv[5]) or None)
