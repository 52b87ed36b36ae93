"""The local shards of DTensors: parameters that PyTorch has cut over the ranks of a group.

Such a parameter is one tensor to the optimizer, and this rank holds a block of it. Its memory stays where
PyTorch has put it, since FSDP2 sends from there. Where it is not trained there, the run's numbers are copies,
which are fetched before a send and put back after it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from p2psgd.base.errors import TrainerError
from p2psgd.ipc.part import Block


def is_cut(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor; the module of these is not imported for that."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: Any) -> Any:
    """Return what this rank holds of a tensor, in its memory."""
    if not is_cut(tensor):
        return tensor.detach()
    with torch.no_grad():
        return tensor.to_local().detach()


def gradient_of(parameter: Any) -> Any:
    """Return this rank's part of a parameter's gradient, once that is complete; None if it has none."""
    gradient = parameter.grad
    return gradient if gradient is None else local_of(gradient)


def complete_gradient(parameter: Any) -> None:
    """Let a parameter's gradient lie on the mesh as the parameter does.

    Of a norm whose input is cut it is a partial sum on each rank, and all of these call this together.
    """
    gradient = parameter.grad
    if gradient is not None and is_cut(gradient) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def wrap(parameter: Any, local: Any) -> Any:
    """Return a DTensor that is cut as the parameter is, with this local block."""
    return type(parameter.data).from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def block_of(name: str, parameter: Any) -> Block:
    """Return which block of a parameter this rank holds; TrainerError if that is none of one piece."""
    block = [(0, size) for size in parameter.shape]
    mesh, placements = parameter.device_mesh, parameter.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(each.is_partial() for each in placements):
        raise TrainerError(
            f"parameter {name!r} is placed as {describe_placements(parameter)} over {mesh}, and no rank holds"
            " a block of it: give p2psgd.torch.attach the model as fully_shard or parallelize_module made it"
        )
    sides = [(each, mesh.size(dim), coordinate[dim]) for dim, each in enumerate(placements)]
    shards = [side for side in sides if not side[0].is_replicate()]
    strided = [side for side in shards if type(side[0]).__name__ == "_StridedShard"]
    # FSDP cuts what tensor parallelism has cut before, though its mesh dimension comes first.
    for placement, ranks, rank in [*(side for side in shards if side not in strided), *strided]:
        begin, end = block[placement.dim]
        size = -(-(end - begin) // ranks)
        block[placement.dim] = min(begin + rank * size, end), min(begin + (rank + 1) * size, end)
    if tuple(end - begin for begin, end in block) != tuple(local_of(parameter).shape):
        raise TrainerError(
            f"parameter {name!r} is cut by {describe_placements(parameter)} into pieces that p2psgd does not"
            f" know: this rank holds {tuple(local_of(parameter).shape)} of {tuple(parameter.shape)}"
        )
    return tuple(block)


def describe_placements(parameter: Any) -> str:
    """Return how a parameter lies on its mesh, in a word for each of its dimensions."""
    words = []
    for placement in parameter.placements:
        known = "whole" if placement.is_replicate() else f"dimension {getattr(placement, 'dim', '?')}"
        words.append("a sum" if placement.is_partial() else known)
    return " and ".join(words)


class LocalShards:
    """The float32 shards whose memory is not that of the run; `pairs` are (parameter, part of the flat
    tensor).
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]] = ()) -> None:
        self._pairs = list(pairs)

    def gather(self) -> None:
        """Fetch what the parameters are now."""
        for parameter, part in self._pairs:
            part.copy_(local_of(parameter))

    def scatter(self) -> None:
        """Set the parameters to what the run's numbers are."""
        for parameter, part in self._pairs:
            local_of(parameter).copy_(part)


class ShardsInPlace:
    """Holds the same shards where they are trained in their own memory, which PyTorch may exchange."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._parameters = list(parameters)
        self._pointers = [0] * len(self._parameters)

    def have_moved(self) -> bool:
        """Return whether any of them has other memory than at the call before."""
        before, self._pointers = self._pointers, [each._local_tensor.data_ptr() for each in self._parameters]
        return self._pointers != before


def array_of(parameter: Any) -> Any:
    """Return a shard in the host's memory as a flat array (n,), in its memory; None if it is not of one
    piece.
    """
    local = local_of(parameter)
    return local.view(-1).numpy() if local.is_contiguous() else None


class Swapped:
    """A parameter with another local tensor for a while, such as its float32 master."""

    def __init__(self, parameter: Any, local: Any) -> None:
        self._parameter, self._gradient, parameter.grad = parameter, parameter.grad, None
        self._data, self._cut = parameter.data, is_cut(parameter)
        if not self._cut:
            parameter.data = local
            return
        # A DTensor's `data` does not take its local tensor along.
        self._held = parameter._local_tensor, parameter._spec
        whole = wrap(parameter, local)
        parameter.data = whole
        parameter._local_tensor, parameter._spec = local, whole._spec

    def give_gradient(self, room: Any) -> None:
        """Give the parameter a float32 copy of the gradient that it had, in the memory `room`."""
        if self._gradient is None:
            return
        if not self._cut:
            dense = self._gradient.layout == torch.strided
            self._parameter.grad = room.copy_(self._gradient) if dense else self._gradient.float()
            return
        self._parameter.grad = wrap(self._parameter, room.copy_(local_of(self._gradient)))

    def undo(self) -> None:
        """Give the parameter back its own local tensor and the gradient that it had."""
        self._parameter.grad = None
        self._parameter.data = self._data
        if self._cut:
            self._parameter._local_tensor, self._parameter._spec = self._held
        self._parameter.grad = self._gradient
