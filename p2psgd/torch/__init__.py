"""Train a plain PyTorch script by p2psgd: after `p2psgd.torch.attach(model, optimizer)` each
`optimizer.step()` is one step of this node. `closure` is for L-BFGS. No other package imports PyTorch.
"""

from __future__ import annotations

from p2psgd.base.formatting import how_to_install

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        f"No module named 'torch': p2psgd.torch needs PyTorch; {how_to_install('torch')}", name="torch"
    ) from None

from p2psgd.torch.attach import attach
from p2psgd.torch.closure import ModelClosure, closure
from p2psgd.torch.model_link import ModelLink

__all__ = ["ModelClosure", "ModelLink", "attach", "closure"]

del _torch, how_to_install
