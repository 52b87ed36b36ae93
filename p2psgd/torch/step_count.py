"""Counts the steps of an optimizer, of which several may go into one send."""

from __future__ import annotations

from p2psgd.client.link import Link


class StepCount:
    """The steps of one node. A link counts sends; each holds `local_steps` steps, the last one perhaps fewer.

    Attributes:
        unsent: The number of steps since the last send.
    """

    def __init__(self, link: Link, local_steps: int) -> None:
        self.unsent = 0
        self._link, self._local_steps = link, local_steps
        self._base = (0, 0)  # steps, and the sends that held them

    @property
    def made(self) -> int:
        """The number of steps so far."""
        return self.sent + self.unsent

    @property
    def sent(self) -> int:
        """The number of steps that were sent."""
        steps, sends = self._base
        return steps + (self._link.steps - sends) * self._local_steps

    def restore(self, steps: int, sends: int) -> None:
        """Go on from that number of `steps` in that number of `sends`, whatever `local_steps` was then."""
        self._base = (steps, sends)

    def note_send(self, sends: int) -> None:
        """Count a send of the unsent steps. `sends` were made before it; one that did not count has lost the
        steps.
        """
        if self._link.steps > sends:
            self._base = (self.sent + self.unsent - self._local_steps, self._link.steps)
        self.unsent = 0
