"""The node's link as a script may use it whose optimiser's steps call `receive` and `send`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from p2psgd.errors import TrainerError
from p2psgd.trainer.link import Link


class LinkOfModel:
    """All of a Link, but that `receive` has the model's parameters follow, and what would leave them behind,
    or take the place of what steps give, is refused.
    """

    def __init__(self, link: Link, receive: Callable[[], int]) -> None:
        self._link = link
        self._receive = receive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def receive(self) -> int:
        """Apply what has come, as after each step, but between two; return how many updates that were."""
        return self._receive()

    def send(self, *arguments: object, **named: object) -> NoReturn:
        """TrainerError."""
        raise TrainerError("each optimizer.step() sends what it has changed: leave send out")

    def skip(self) -> NoReturn:
        """TrainerError."""
        raise TrainerError("call skip() of what p2psgd.torch.attach has returned, not of its link")

    def keep(self, *arguments: object) -> NoReturn:
        """TrainerError."""
        raise TrainerError("what is to be kept beside the model is given to p2psgd.torch.attach(keep=[...])")
