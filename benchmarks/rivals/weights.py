"""Read and write the weights of a PyTorch module as one flat array."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def set_weights(model: Any, weights: NDArray[np.float32]) -> None:
    """Flat, as `weights_of` gives them."""
    torch: Any = importlib.import_module("torch")
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), model.parameters())


def weights_of(model: Any) -> NDArray[np.float32]:
    """(P,) float32, copied."""
    return np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])
