"""The size of the step by which a sent weight moves: from a fixed tau, or steered towards a density.

tau is in units of the mean gradient of a mini-batch, so a weight moves by learning rate x tau, rounded to
quanta [Strom 2015, section 3; there the gradient is summed]. As the learning rate falls the step falls with
it, to no less than one quantum. With a target density instead, tau follows what was sent: more than the
target raises it, less lowers it. The rule is a power law with a small exponent and a bounded factor, so one
odd mini-batch moves tau little and no sequence of them makes it swing; it depends on the counts alone and is
thus the same in every replay. No density is aimed at beyond half of what a send holds: one that is always
full would have tau fall for ever.
"""

from __future__ import annotations

from p2psgd.ipc.layout import send_indices_max
from p2psgd.wire.codec import MAGNITUDE_MAX

TAU_START = (
    0.03  # mid-range for nets of a million weights; the controller leaves it within tens of mini-batches
)
EXPONENT = 0.05  # twice the target count raises tau by 3.5 %; with 0.2 the counts swung tenfold
FACTOR_MAX = 1.1  # per mini-batch, either way
TAU_MIN, TAU_MAX = 1e-9, 1e6


class StepSize:
    """The step in quanta for each mini-batch of one trainer. `density`: the fraction of the `weights` that is
    aimed at; None: `tau` is fixed.
    """

    def __init__(
        self, weights: int, quantum: float, *, tau: float | None = None, density: float | None = None
    ) -> None:
        self._quantum = quantum
        half = send_indices_max(weights) / 2
        self.density = None if density is None else min(density, half / weights)
        least = min(1.0, max(0.5, half))  # where one index is all there is room for, less than that
        self._target = None if self.density is None else max(least, self.density * weights)
        self._tau = TAU_START if tau is None else tau

    @property
    def tau(self) -> float:
        """The threshold in units of the mean gradient."""
        return self._tau

    def restore(self, tau: float) -> None:
        """Go on from an earlier trainer's threshold; a fixed one stays."""
        if self._target is not None:
            self._tau = min(TAU_MAX, max(TAU_MIN, tau))

    def step(self, learning_rate: float) -> int:
        """Return the quanta that a weight moves by at this learning rate, 1 to MAGNITUDE_MAX."""
        return min(MAGNITUDE_MAX, max(1, round(learning_rate * self._tau / self._quantum)))

    def sent(self, count: int) -> None:
        """Learn how many indices the last mini-batch sent."""
        if self._target is None:
            return
        factor = ((count + 1) / (self._target + 1)) ** EXPONENT
        factor = min(FACTOR_MAX, max(1 / FACTOR_MAX, factor))
        self._tau = min(TAU_MAX, max(TAU_MIN, self._tau * factor))
