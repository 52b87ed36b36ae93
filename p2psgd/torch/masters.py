"""Parameters of bfloat16 or float16, and the float32 numbers that are trained in their place.

The run and the optimizer's state are float32. The model computes with the rounded numbers, in the memory that
its parameters always had. For the time of `optimizer.step()` each such parameter is its float32 master, and
its gradient a float32 copy, so an optimizer sees a float32 model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from p2psgd.torch.shards import Swapped, local_of

ROUNDED_TYPES: Final = (torch.bfloat16, torch.float16)
PIECE: Final = 1 << 18  # numbers compared at a time, in the cache: four times as fast as a whole parameter


class Masters:
    """The float32 masters of some parameters.

    `triples` are (parameter, master, memory for a float32 gradient), of one shape each.
    """

    def __init__(self, triples: Iterable[tuple[Any, Any, Any]] = ()) -> None:
        self._all = [(parameter, local_of(parameter), master, room) for parameter, master, room in triples]
        self._swapped: list[Swapped] | None = None  # while the parameters are masters

    @classmethod
    def copied(cls, parameters: Iterable[Any]) -> Masters:
        """Return masters of their own for those of these parameters that are rounded."""
        rounded = [(each, local_of(each)) for each in parameters if each.dtype in ROUNDED_TYPES]
        return cls(
            (each, local.float(), torch.empty_like(local, dtype=torch.float32)) for each, local in rounded
        )

    def __bool__(self) -> bool:
        return bool(self._all)

    def adopt(self) -> None:
        """Take over what the script has changed in parameters since they were rounded."""
        for _, rounded, master, _ in self._all:
            pieces = rounded.reshape(-1).split(PIECE), master.reshape(-1).split(PIECE)
            for ours, exact in zip(*pieces, strict=True):
                expected = exact.to(ours.dtype)
                if not torch.equal(ours, expected):
                    exact.copy_(torch.where(ours == expected, exact, ours))

    def widen(self) -> None:
        """Let each parameter be its master, with a float32 copy of its gradient."""
        if self._swapped is not None:
            return
        self._swapped = []
        for parameter, _, master, room in self._all:
            swapped = Swapped(parameter, master)
            self._swapped.append(swapped)
            swapped.give_gradient(room)

    def narrow(self) -> None:
        """Let each parameter be its rounded numbers again, as they were, with the gradient that it had."""
        swapped, self._swapped = self._swapped, None
        for each in swapped or ():
            each.undo()

    def round(self) -> None:
        """Set the rounded numbers to what the masters are now."""
        for _, rounded, master, _ in self._all:
            rounded.copy_(master)

    def cast_state(self, optimizer: Any) -> None:
        """Give the optimizer's state of each parameter the type that the parameter has now."""
        for parameter, *_ in self._all:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                counts = key == "step"  # which float32 holds for parameters of any type
                if not counts and isinstance(value, torch.Tensor) and value.is_floating_point():
                    state[key] = value.to(parameter.dtype)
