"""A script that trains by p2psgd.torch as fast as it can and notes what became of its steps.

python -P tests/torch/adding_trainer.py STEPS NOTES.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import p2psgd.torch

WEIGHTS = 500_000
RATE = 2.0**-10
SILENCE_S = 120.0


def main(steps: int, path: str) -> None:
    """Make the steps, wait for those of the peers, and write `made`, the sum of all changes of this node."""
    torch.set_num_threads(1)
    weights = torch.nn.Linear(WEIGHTS, 1, bias=False)
    torch.nn.init.zeros_(weights.weight)
    optimizer = torch.optim.SGD(weights.parameters(), lr=RATE)
    with p2psgd.torch.attach(weights, optimizer, density=0.05) as link:
        chance = torch.Generator().manual_seed(link.rank)
        made = torch.zeros(1, WEIGHTS)
        sends = 0
        while link.steps < steps:
            weights.weight.grad = torch.randn(1, WEIGHTS, generator=chance)
            made -= RATE * weights.weight.grad
            before = link.link.steps
            optimizer.step()
            sends += link.link.steps > before
        waited_s = link.link.waited_s
        all_came = link.wait_for_peers(silence_s=SILENCE_S)
        residual = link.link.residual.copy()
        steps = link.steps
    half = Path(path).with_suffix(".half.npz")
    np.savez(
        half,
        made=made.numpy()[0],
        residual=residual,
        replica=weights.weight.detach().numpy()[0],
        steps=steps,
        sends=sends,
        waited_s=waited_s,
        all_came=all_came,
    )
    half.rename(path)  # whoever sees the file sees all of it


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
