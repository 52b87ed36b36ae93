"""The model and the data of fsdp.py, tensor_parallel.py and pipeline.py: a byte-level transformer that learns
the sources of Python's standard library.
"""

from __future__ import annotations

import math
import sysconfig
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

CONTEXT, WIDTH, LAYERS, HEADS = 64, 64, 2, 4
RATE = 2e-3


class Layer(nn.Module):
    """One layer: attention to earlier bytes, then a net for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        parts = (each(normed) for each in (self.query, self.key, self.value))
        # As many heads as this rank has, under tensor parallelism.
        heads = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.narrow(functional.gelu(self.widen(self.between(x))))


class GPT(nn.Module):
    """Predicts each byte from those before it. A stage of a pipeline lacks some of the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleDict({str(number): Layer() for number in range(LAYERS)})
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bytes is not None:
            x = self.bytes(x) + self.places(torch.arange(CONTEXT))
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over all bytes, in nats a byte."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def read_windows() -> tuple[torch.Tensor, torch.Tensor]:
    """Return windows of CONTEXT + 1 bytes each to train on, and 512 of files that nobody trains on."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    unseen = [path for path in files if zlib.crc32(path.name.encode()) % 10 == 0]
    train, test = _windows([path for path in files if path not in unseen]), _windows(unseen)
    return train, test[:: len(test) // 512][:512]


def _windows(files: list[Path]) -> torch.Tensor:
    data = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
    count = len(data) // (CONTEXT + 1)
    return data[: count * (CONTEXT + 1)].view(count, CONTEXT + 1).long()


def batches_of(windows: torch.Tensor, *, steps: int, size: int, rank: int, ranks: int) -> torch.Tensor:
    """Return one rank's batches, (steps, size, CONTEXT + 1), of an order that all ranks share."""
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(1))
    places = torch.arange(steps * ranks * size) % len(windows)
    return windows[order[places]].view(steps, ranks, size, CONTEXT + 1)[:, rank]


def set_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Set the learning rate of a step: it rises, and then falls as a cosine does."""
    warm = max(1, steps // 20)
    falling = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
    optimizer.param_groups[0]["lr"] = RATE * ((step + 1) / warm if step < warm else falling)
