"""A function for `scipy.optimize.minimize` that all nodes evaluate together. It does not import SciPy."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2psgd.client.attach import attach
from p2psgd.client.evaluate import LossAndGradient
from p2psgd.client.link import Link


class ScipyFun:
    """The function that `scipy_fun` returns; close it, or use it in a with block.

    Attributes:
        link: The link of this script.
    """

    def __init__(self, link: Link, function: LossAndGradient, data: Any, portions: int | None) -> None:
        self.link = link
        self._function = function
        self._data = data
        self._portions = portions

    def __call__(self, x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return loss and gradient at `x` over all data."""
        point = np.asarray(x, np.float64)
        return self.link.evaluate(self._function, point, self._data, portions=self._portions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finished=kind is None)

    def close(self, finished: bool = True) -> None:
        """Detach from the daemon; `finished`: the script has done all of its work."""
        self.link.close(finished=finished)


def scipy_fun(
    function: LossAndGradient, x0: ArrayLike, data: Any, *, portions: int | None = None, **options: Any
) -> ScipyFun:
    """Attach, and return the function that `scipy.optimize.minimize` calls with `jac=True`.

    All nodes run the same script, with the same version of SciPy, and all come to the same `x`, to the bit.

    Args:
        function: Called with `x`, flat and read-only, and the data of one portion. Returns the sum of the
            loss over these samples and its gradient.
        x0: The start, the same on all nodes; only its size counts here.
        data: As of `Link.evaluate`.
        portions: As of `Link.evaluate`. Default: 64, or one for each sample if there are fewer.
        **options: Options of `p2psgd.attach`, such as `label` and `control`.

    Returns:
        The function.

    Raises:
        TrainerError: as from `p2psgd.attach`; calls of the function raise it as `Link.evaluate` does.

    Example:
        ```python
        with p2psgd.scipy_fun(loss_and_gradient, x0, rows) as fun:
            result = scipy.optimize.minimize(fun, x0, jac=True, method="L-BFGS-B")
        ```
    """
    initial = np.zeros(np.asarray(x0).size, np.float32)
    return ScipyFun(attach(initial, mode="closure", **options), function, data, portions)
