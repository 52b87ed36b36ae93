"""Decides which steps of an optimizer are sent together, and says what it has chosen.

With a number of local steps it is that number. Without one, in asynchronous mode, each step is sent while the
links are free to take it. While they are busy with what was sent before, steps are added up: an update that
waits in a queue is late, and one sum of several steps is smaller than the steps one by one. So the speed of
the links decides, step by step, and the trainer never waits for them.
"""

from __future__ import annotations

from typing import Any, Final

from p2psgd.base.formatting import say
from p2psgd.client.link import Link
from p2psgd.ipc.ring_buffer import SEND_STEPS_MAX

WINDOW: Final = 50  # own steps in which sends are counted; the first one tells
TOLD_MAX: Final = 5  # lines of one trainer, however often the links change
CHANGE: Final = 2.0  # of steps in a send, by which a line is worth another


class SendPolicy:
    """The policy of one trainer.

    `local_steps`: the steps of each send; None: chosen by the links, and reported. `sent_part`: what of the
    weights a send holds, in words.

    Attributes:
        unsent: The number of steps since the last send.
        adds_up: True if a send may hold more than one step.
    """

    def __init__(self, link: Link, *, local_steps: int | None, sent_part: str) -> None:
        self.unsent = 0
        self.adds_up = local_steps != 1
        self._link, self._local_steps, self._sent_part = link, local_steps, sent_part
        self._steps = self._sends = 0  # of the current window
        self._told: list[float] = []  # steps in a send

    def waits(self) -> bool:
        """Count a step; return whether the next one is added to the steps so far before they are sent."""
        self.unsent += 1
        self._steps += 1
        if self._local_steps is not None:
            return self.unsent < self._local_steps
        return self._link.busy and self.unsent < SEND_STEPS_MAX

    def note_send(self) -> None:
        """Begin anew after a send, or after steps that are lost; say what is chosen when that is news, and
        there can be a peer to send it to.
        """
        self.unsent = 0
        self._sends += 1
        if self._local_steps is not None or self._link.own_daemon is not None or self._steps < WINDOW:
            return
        together = self._steps / self._sends
        self._steps = self._sends = 0
        if len(self._told) < TOLD_MAX and (not self._told or _differ(together, self._told[-1])):
            self._told.append(together)
            say(self.describe(together))

    def describe(self, together: float) -> str:
        """Return one sentence on what is sent, and why, where a send holds `together` steps on average."""
        if together < CHANGE:
            return (
                f"each step is sent by itself, {self._sent_part}: the links are free for it;"
                " attach(local_steps=...) sends several together"
            )
        return (
            f"{together:.0f} steps are sent together, {self._sent_part}: until then the links are busy with"
            " the last send; attach(local_steps=...) sets another number"
        )


def describe_part(weights: int, *, density: float | None, tau: Any) -> str:
    """Return in words what of all `weights` a send holds."""
    if density is None:
        return f"what of {weights:,} weights exceeds tau {tau:g}"
    return f"about {100 * density:.3g} % of {weights:,} weights"


def _differ(together: float, told: float) -> bool:
    return not 1 / CHANGE < together / told < CHANGE
