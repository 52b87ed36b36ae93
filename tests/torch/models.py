"""A small model with all that models have, and mini-batches for it."""

from __future__ import annotations

from typing import Any

from tests.torch.needed import nn, torch

NAMES = ["scale", "first.weight", "first.bias", "norm.weight", "norm.bias", "last.bias"]
WEIGHTS = 1 + 36 + 6 + 6 + 6 + 6


class Model(nn.Module):  # type: ignore[misc]
    """`last` has the weight of `first`, `frozen` is not trained, and `norm` has buffers, and `cache` is one
    that no state_dict has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.empty(0))
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, inputs: Any) -> Any:
        return self.last(torch.relu(self.frozen(self.norm(self.first(inputs)))) * self.scale)


def make_model(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return Model()


def flat(model: Any) -> Any:
    """(P,), a copy of what is trained."""
    parts = [each.detach().reshape(-1) for each in model.parameters() if each.requires_grad]
    return torch.cat(parts).clone()


def take_gradient(model: Any, seed: int, scale: float = 1.0) -> Any:
    """Of mini-batch `seed`, in the parameters; the loss."""
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    loss = (model(inputs) - inputs.flip(1)).square().mean() * scale
    loss.backward()
    return loss
