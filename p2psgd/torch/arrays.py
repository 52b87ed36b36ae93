"""View a flat tensor as arrays that a link accepts, in the same memory: numpy's, or CuPy's by DLPack."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch

from p2psgd.client.attach import attach
from p2psgd.client.link import Link

Named = Mapping[str, Any]  # tensors or options, of the kinds that PyTorch has, by name


class Arrays(Protocol):
    """The arrays of the device that a model is on."""

    @property
    def xp(self) -> ModuleType:
        """The module of these arrays: numpy, or one with the same functions."""

    def attach(self, initial: Named, options: Named) -> Link:
        """Attach, and return a link whose arrays are of this kind."""

    def view(self, tensor: Any) -> Any:
        """Return an array in the tensor's memory."""

    def ordered(self) -> AbstractContextManager[Any]:
        """Order work on arrays after PyTorch's earlier work and before its later work."""


class HostArrays:
    """Arrays of numpy, on the host."""

    xp: ModuleType = np

    def attach(self, initial: Named, options: Named) -> Link:
        return attach(initial, **options)

    def view(self, tensor: Any) -> Any:
        return tensor.numpy()

    def ordered(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()


class DeviceArrays:
    """CuPy's arrays on one CUDA device; PyTorch's current stream there becomes CuPy's."""

    def __init__(self, device: Any) -> None:
        self._device = device

    @property
    def xp(self) -> ModuleType:
        from p2psgd.gpu import memory

        return memory.xp

    def attach(self, initial: Named, options: Named) -> Link:
        from p2psgd.gpu import attach as attach_there

        return attach_there(initial, device=f"cuda:{self._device.index or 0}", **options)

    def view(self, tensor: Any) -> Any:
        from p2psgd.gpu import memory

        return memory.view(tensor)

    def ordered(self) -> AbstractContextManager[Any]:
        from p2psgd.gpu import memory

        return memory.on_stream(torch.cuda.current_stream(self._device).cuda_stream)


def arrays_of(device: Any) -> Arrays:
    """Return the arrays for a torch.device of type cpu or cuda."""
    return DeviceArrays(device) if device.type == "cuda" else HostArrays()
