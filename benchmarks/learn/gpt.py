"""A byte-level GPT and its data: the model of examples/torch/gpt.py with its sizes as parameters."""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

HEADS: Final = 4
TEST_WINDOWS: Final = 512


class GPT(nn.Module):  # type: ignore[misc]
    """Predicts each byte from those before it."""

    def __init__(self, *, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, windows: Any) -> Any:
        """Return the mean loss, in nats a byte, over windows of `context` + 1 bytes each."""
        inputs, targets = windows[:, :-1], windows[:, 1:]
        hidden = self.layers(self.bytes(inputs) + self.places.weight, mask=self.mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def load(context: int) -> tuple[Any, Any]:
    """Return windows (rows, context + 1) of bytes of the standard library to train on, and of other files of
    it to test on.
    """
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    unseen = [path for path in files if zlib.crc32(path.name.encode()) % 10 == 0]
    train = _windows([path for path in files if path not in unseen], context)
    test = _windows(unseen, context)
    return train, test[:: len(test) // TEST_WINDOWS][:TEST_WINDOWS]


def _windows(files: Sequence[Path], context: int) -> Any:
    data = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
    count = len(data) // (context + 1)
    return data[: count * (context + 1)].view(count, context + 1).long()
