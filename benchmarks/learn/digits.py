"""A small convolutional net with batch norm, and the digits that come with the project."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from p2psgd.recipes.datasets import DATASETS

SIDE: Final = 8  # pixels


class DigitsNet(nn.Module):  # type: ignore[misc]
    """Classifies rows of 64 pixels; the 65th entry of a row is its label."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 4) ** 2, 10),
        )

    def forward(self, rows: Any) -> Any:
        """Return the mean cross-entropy, in nats a digit."""
        return functional.cross_entropy(self.scores(rows), rows[:, -1].long())

    def scores(self, rows: Any) -> Any:
        """Return (rows, 10)."""
        return self.layers(rows[:, :-1].view(-1, 1, SIDE, SIDE))

    def accuracy(self, rows: Any) -> float:
        """Return the fraction that is right."""
        return float((self.scores(rows).argmax(1) == rows[:, -1].long()).float().mean())


def load() -> tuple[Any, Any]:
    """Return 1,437 rows to train on, and 360 to test on."""
    with np.load(DATASETS / "digits.npz") as arrays:
        train, test = (
            np.column_stack([arrays[f"x_{part}"], arrays[f"y_{part}"]]).astype(np.float32)
            for part in ("train", "test")
        )
    return torch.from_numpy(train), torch.from_numpy(test)
