"""A flat tensor as arrays of the kind that a link takes, in the same memory: numpy's, or CuPy's by DLPack."""

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


class Arrays(Protocol):
    """Of the device that a model is on."""

    @property
    def xp(self) -> ModuleType:
        """numpy, or a module with the same functions."""

    def attach(self, initial: Mapping[str, Any], options: Mapping[str, Any]) -> Link:
        """A link whose arrays are of this kind."""

    def view(self, tensor: Any) -> Any:
        """The same memory as an array."""

    def ordered(self) -> AbstractContextManager[Any]:
        """What is done with arrays in here comes after what PyTorch has ordered, and before what it will."""


class HostArrays:
    """numpy's."""

    xp: ModuleType = np

    def attach(self, initial: Mapping[str, Any], options: Mapping[str, Any]) -> Link:
        return attach(initial, **options)

    def view(self, tensor: Any) -> Any:
        return tensor.numpy()

    def ordered(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()


class DeviceArrays:
    """CuPy's, on one CUDA device; PyTorch's current stream there becomes CuPy's."""

    def __init__(self, device: Any) -> None:
        self._device = device

    @property
    def xp(self) -> ModuleType:
        from p2psgd.gpu import memory

        return memory.xp

    def attach(self, initial: Mapping[str, Any], options: Mapping[str, Any]) -> Link:
        from p2psgd.gpu import attach as attach_there

        return attach_there(initial, device=f"cuda:{self._device.index or 0}", **options)

    def view(self, tensor: Any) -> Any:
        from p2psgd.gpu import memory

        return memory.view(tensor)

    def ordered(self) -> AbstractContextManager[Any]:
        from p2psgd.gpu import memory

        return memory.on_stream(torch.cuda.current_stream(self._device).cuda_stream)


def arrays_of(device: Any) -> Arrays:
    """Of a torch.device of type cpu or cuda."""
    return DeviceArrays(device) if device.type == "cuda" else HostArrays()
