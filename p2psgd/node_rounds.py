"""What a node does around the rounds of a ring: it opens them for its trainer, and measures what they cost.

The memory of a dense ring is made here, once the run is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from p2psgd.core.dense_memory import DenseMemory
from p2psgd.core.effects import OpenRound
from p2psgd.core.events import (
    BucketShared,
    Event,
    RingChunkReceived,
    RingUpdateReceived,
    RoundShared,
)
from p2psgd.core.run_spec import RunSpec
from p2psgd.errors import ExitCode, UsageError
from p2psgd.ipc.control_server import ControlServer
from p2psgd.ipc.dense_segments import DenseSegments
from p2psgd.wire.mode import parse_mode

ADDING: Final = (RingChunkReceived, RingUpdateReceived, BucketShared, RoundShared)
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class NodeRounds:
    """One node's. `active`: it has a trainer that takes part."""

    def __init__(self, spec: RunSpec, control: ControlServer) -> None:
        """UsageError if this version does not know the run's mode."""
        try:
            self.mode = parse_mode(spec.mode)
        except ValueError as error:
            raise UsageError(str(error), ExitCode.CONFIGURATION) from None
        self.active = False
        self.memory: DenseMemory | None = None
        self._control = control
        self._adding_s = self._sending_s = 0.0  # since the trainer attached
        self._opened_at: int | None = None  # the last completed round, when one was opened for it last
        if self.mode.dense:
            segments = DenseSegments(spec.weights)
            control.share_numbers(segments)
            self.memory = DenseMemory(segments.shares, segments.arrays, segments.sums)

    def begin(self) -> None:
        """A trainer has attached."""
        self._adding_s = self._sending_s = 0.0
        self._opened_at = None

    def time_taking(self, event: Event, now: float, take: Callable[[Event, float], Result]) -> Result:
        """`take(event, now)`; count how long that takes if it is about a round."""
        if not isinstance(event, ADDING):
            return take(event, now)
        begun = time.perf_counter()
        try:
            return take(event, now)
        finally:
            self._adding_s += time.perf_counter() - begun

    def time_sending(
        self, send: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Hand something to the network, and count how long that takes."""
        begun = time.perf_counter()
        try:
            return send(*args, **kwargs)
        finally:
            self._sending_s += time.perf_counter() - begun

    def open(self, effect: OpenRound, *, done: int) -> None:
        """Let the trainer give its next share, after round `done`.

        In a dense ring it knows of the round that its last share went into. If there was another besides,
        which this node missed and was given later, it takes the weights as a whole.
        """
        if self.mode.dense and self._opened_at is not None and done != self._opened_at + 1:
            self._control.replica_replaced()
        self._opened_at = done
        self._control.open_round(
            done + 1,
            contributors=effect.contributors,
            sums=effect.sums,
            adding_us=round(1e6 * self._adding_s),
            sending_us=round(1e6 * self._sending_s),
        )
