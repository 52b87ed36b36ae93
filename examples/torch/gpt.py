"""A byte-level transformer learns the sources of Python's standard library, by AdamW.

On one machine: `python gpt.py --alone`. On four nodes, each of which takes a quarter of the same batches:
`p2psgd local -n 4 --trainer "python gpt.py"`. Prints the loss on files that nobody trains on, in nats a byte.
"""

import argparse
import contextlib
import math
import sysconfig
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import p2psgd.torch

BATCH, CONTEXT, WIDTH, LAYERS, HEADS = 4, 64, 64, 2, 4

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--alone", action="store_true", help="one process, without p2psgd")
options.add_argument("--batches", type=int, default=2000, help="of all nodes together")
options.add_argument("--seed", type=int, default=1)
options.add_argument("--at-replica", action="store_true", help="attach(own_residual=False)")
options.add_argument("--own-horizon", action="store_true", help="attach(run_horizon=False)")
options.add_argument("--local-steps", type=int, help="attach(local_steps=...)")
asked = options.parse_args()


class GPT(nn.Module):
    """Predicts each byte from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False
        )

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        """The mean over windows of CONTEXT + 1 bytes each."""
        inputs, targets = windows[:, :-1], windows[:, 1:]
        hidden = self.layers(self.bytes(inputs) + self.places.weight, mask=self.mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def windows_of(files: list[Path]) -> torch.Tensor:
    data = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
    count = len(data) // (CONTEXT + 1)
    return data[: count * (CONTEXT + 1)].view(count, CONTEXT + 1).long()


torch.set_num_threads(1)
torch.manual_seed(asked.seed)
files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
unseen = [path for path in files if zlib.crc32(path.name.encode()) % 10 == 0]
train, test = windows_of([path for path in files if path not in unseen]), windows_of(unseen)
test = test[:: len(test) // 512][:512]
model = GPT()
for parameter in model.parameters():
    if parameter.dim() == 2:
        nn.init.normal_(parameter, 0.0, 0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1)

with contextlib.ExitStack() as stack:
    link, rank, nodes = None, 0, 1
    if not asked.alone:
        link = p2psgd.torch.attach(
            model,
            optimizer,
            own_residual=not asked.at_replica,
            run_horizon=not asked.own_horizon,
            local_steps=asked.local_steps,
        )
        stack.enter_context(link)
        rank, nodes = link.rank, link.world_size
    steps = asked.batches // nodes
    warm = max(1, steps // 20)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(asked.seed))
    batches = train[order[: steps * nodes * BATCH]].view(steps, nodes, BATCH, CONTEXT + 1)
    for step in range(0 if link is None else link.steps, steps):
        factor = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
        optimizer.param_groups[0]["lr"] = 2e-3 * ((step + 1) / warm if step < warm else factor)
        optimizer.zero_grad()
        loss = model.loss(batches[step, rank])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if link is not None and step % 20 == 0:
            link.report(loss=loss.item())
    if link is not None:  # the replica has all once the others have ended, too
        link.wait_for_peers()

with torch.no_grad():
    print(f"test loss {sum(model.loss(part) for part in test.split(64)).item() / 8:.4f}")
