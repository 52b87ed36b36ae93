"""The mean over nodes of the gradients that came since a rule's last step.

In rounds these are of one round, so it is the gradient of the batch that all nodes have together.
"""

from __future__ import annotations

import numpy as np

from p2psgd.core.owners.rules.rule import Floats, Places


class MeanGradient:
    """Adds up the gradients of one owner's range, in the order in which they are given."""

    def __init__(self) -> None:
        self.rate = 0.0  # of the last one
        self._sum: Floats = np.zeros(0, np.float32)
        self._contributions = 0

    def add(self, places: Places, gradient: Floats, rate: float, *, size: int) -> None:
        """Note a gradient (n,) at `places` (n,) of a range of `size` weights."""
        if len(self._sum) != size or not self._contributions:
            self._sum, self._contributions = np.zeros(size, np.float32), 0
        self._sum[places] += gradient
        self._contributions += 1
        self.rate = rate

    def take(self, contributors: int) -> Floats | None:
        """Return the mean over this number of nodes, and begin anew; None if nothing came."""
        if not self._contributions:
            return None
        self._contributions = 0
        mean: Floats = self._sum / np.float32(contributors)
        return mean
