"""Train a plain PyTorch script by p2psgd: after `p2psgd.torch.attach(model, optimizer)` each
`optimizer.step()` is one step of this node. No other package imports PyTorch.
"""

from __future__ import annotations

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "No module named 'torch': p2psgd.torch needs PyTorch, pip install 'p2psgd[torch]'", name="torch"
    ) from None

from p2psgd.torch.attach import attach
from p2psgd.torch.model_link import ModelLink

__all__ = ["ModelLink", "attach"]

del _torch
