"""A function for `scipy.optimize.minimize` that all nodes evaluate together. It does not import SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2psgd.client.evaluate import LossAndGradient
from p2psgd.client.objective import Objective


class ScipyFun(Objective):
    """The function that `scipy_fun` returns; close it, or use it in a with block.

    Attributes:
        link: The link of this script.
    """

    def __init__(
        self,
        function: LossAndGradient,
        x0: ArrayLike,
        data: Any,
        portions: int | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(np.zeros(np.asarray(x0).size, np.float32), portions, options)
        self._function = function
        self._data = data

    def __call__(self, x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return loss and gradient at `x` over all data."""
        return self._evaluate(self._function, np.asarray(x, np.float64), self._data)


def scipy_fun(
    function: LossAndGradient, x0: ArrayLike, data: Any, *, portions: int | None = None, **options: Any
) -> ScipyFun:
    """Attach, and return the function that `scipy.optimize.minimize` calls with `jac=True`.

    All nodes run the same script, with the same version of SciPy and as many threads (in the environment,
    OPENBLAS_NUM_THREADS=1), on processors of one kind, and all come to the same `x`, to the bit.

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
    return ScipyFun(function, x0, data, portions, options)
