"""A function of all data and its link, which `scipy_fun` and `p2psgd.torch.closure` have in common.

A file of its own, since the one does not import PyTorch and the other is nothing without it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from p2psgd.client.attach import attach
from p2psgd.client.evaluate import LossAndGradient


class Objective:
    """An objective function that all nodes evaluate together; close it, or use it in a with block.

    Attributes:
        link: The link of this script.
    """

    def __init__(self, initial: Any, portions: int | None, options: dict[str, Any]) -> None:
        """Attach in mode `closure`; `initial` and `options` as of `p2psgd.attach`, `portions` as of
        `Link.evaluate`.
        """
        self.link = attach(initial, mode="closure", **options)
        self._portions = portions

    def _evaluate(
        self, function: LossAndGradient, point: NDArray[Any], data: Any
    ) -> tuple[float, NDArray[np.float64]]:
        """Return loss and gradient at a point over all data."""
        return self.link.evaluate(function, point, data, portions=self._portions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._keep_result_or_close()
        self.link.__exit__(kind, error, trace)

    def _keep_result(self) -> None:
        """Have the daemon keep what the optimizer has come to, if that is not the last point it asked for."""

    def _keep_result_or_close(self) -> None:
        try:
            self._keep_result()
        except BaseException:
            self.link.close()
            raise

    def close(self, finished: bool = True) -> None:
        """Detach from the daemon; `finished`: the script has done all of its work."""
        self._keep_result_or_close()
        self.link.close(finished=finished)
