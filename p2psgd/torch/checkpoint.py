"""Keep the state of a PyTorch script with its node's checkpoints: the optimizer's state, the model's buffers,
and further objects that the script names. The weights are in the replica.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from p2psgd.base.errors import TrainerError
from p2psgd.client.link import Link
from p2psgd.ipc.script_state import STATE_BYTES_MAX
from p2psgd.torch.arrays import Named
from p2psgd.torch.step_size import Steps

KEPT_BY = "p2psgd.torch, 4"  # whose state it is, and its version
HEADERS_BYTES = 1 << 24  # so much less than a link keeps, for names and the like


class Kept:
    """Keeps the state of one trainer; `others` have state_dict() and load_state_dict(), as schedulers do."""

    def __init__(
        self,
        link: Link,
        model: Any,
        optimizers: Sequence[Any],
        steps: Steps,
        *,
        others: Sequence[Any],
    ) -> None:
        self._link, self._model, self._optimizers, self._steps = link, model, optimizers, steps
        self._others = others
        self._kinds = ", ".join(type(each).__name__ for each in (*optimizers, *others))
        self._said = False

    def make(self) -> dict[str, Any]:
        """Return the state after the last step, for Link.keep()."""
        state = {
            "by": KEPT_BY,
            "kinds": self._kinds,
            "steps": self._link.steps,
            "rates": np.array(self._steps.rates, np.float64),
            "buffers": _saved(_buffers(self._model)),
            "others": _saved([each.state_dict() for each in self._others]),
        }
        optimizers = [each.state_dict() for each in self._optimizers]
        size = sum(part.nbytes for part in state.values() if isinstance(part, memoryview))
        size += sum(map(_size, optimizers))
        if size <= STATE_BYTES_MAX - HEADERS_BYTES:
            return state | {"optimizers": _saved(optimizers)}
        if not self._said:
            self._said = True
            print(
                f"p2psgd: the optimizer's state and the model's buffers take {size} bytes, more than can be"
                " kept with a checkpoint: after a restart the optimizer begins anew",
                file=sys.stderr,
            )
        return state

    def restore(self) -> None:
        """Continue from the state that an earlier start kept, if any; TrainerError if it does not fit."""
        kept: Named | None = self._link.restored
        if kept is None or kept.get("by") != KEPT_BY:
            return
        same = kept["steps"] == self._link.steps
        self._steps.restore(kept["rates"].tolist() if same else ())
        try:
            if kept["kinds"] != self._kinds:  # many would take what is another's, and fail later
                raise ValueError(f"it is of {kept['kinds']}, and here are {self._kinds}")
            if "optimizers" in kept:
                for optimizer, state in zip(self._optimizers, _loaded(kept["optimizers"]), strict=True):
                    optimizer.load_state_dict(state)
            _copy_buffers(self._model, _loaded(kept["buffers"]))
            for each, state in zip(self._others, _loaded(kept["others"]), strict=True):
                each.load_state_dict(state)
        except (ValueError, RuntimeError, KeyError, pickle.UnpicklingError) as error:
            first = str(error).partition("\n")[0]
            raise TrainerError(
                f"what this node has kept of its script does not fit the script ({first:.200}): give it the"
                " optimizer, buffers and keep of before, or start its node with another --state"
            ) from None


def _saved(value: Any) -> memoryview:
    stream = io.BytesIO()
    torch.save(_plain(value), stream)
    return stream.getbuffer()


def _plain(value: Any) -> Any:
    """Return the value with Python's numbers in place of numpy's, which `_loaded` refuses.

    A schedule that is computed by numpy makes a learning rate of them.
    """
    match value:
        case np.generic():
            return value.item()
        case dict() if type(value) is dict:
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(map(_plain, value))
    return value


def _loaded(saved: Any) -> Any:
    return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)


def _copy_buffers(model: Any, kept: Named) -> None:
    buffers = _buffers(model)
    if buffers.keys() != kept.keys():
        raise ValueError(f"its buffers are {', '.join(buffers)} and were {', '.join(kept)}")
    for name, buffer in buffers.items():
        if buffer.shape != kept[name].shape:
            raise ValueError(f"buffer {name} was {tuple(kept[name].shape)}, and is {tuple(buffer.shape)}")
        buffer.copy_(kept[name])


def _buffers(model: Any) -> dict[str, Any]:
    """Return the buffers that model.state_dict() has too; others are caches, of any shape by now."""
    passing = {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in model.named_buffers() if name not in passing}


def _size(optimizer: Named) -> int:
    """Return the bytes of the tensors in an optimizer's state."""
    return sum(
        value.nbytes
        for state in optimizer["state"].values()
        if isinstance(state, Mapping)
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
