"""Keep a trainer's state with its daemon for the time after a restart: its residual and what its script
names.

The daemon asks for both, once a minute or so; the answer is given between two mini-batches, so that residual,
script and the updates sent so far fit together. It is a copy in memory, the residual's beside the residual (a
fresh memfd would cost four times as long): the daemon writes it to disk in its own time, and training goes
on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2psgd.base.errors import TrainerError, UsageError
from p2psgd.client.compute import Compute
from p2psgd.ipc.client import ControlClient
from p2psgd.ipc.protocol import StateRequest, close_descriptors
from p2psgd.ipc.script_state import ENDED, EVALUATED, OWN, TRAINED, check_trained, pack_state
from p2psgd.ipc.segments import sealed_copy
from p2psgd.ipc.trainer_memory import TrainerMemory

UNASKED_S = 1.0  # between two times the script's part is given unasked, at least
UNASKED_SHARE = 100  # and this many times what the last one took

MakeState = Callable[[], Mapping[str, Any]]


class Keeping:
    """Answers the daemon's requests for the state; `make_state` is the script's part, None if it has none.

    `given`: a state was given since somebody last set this to False. `evaluations`: the number of the
    last one of the script.
    """

    def __init__(
        self, client: ControlClient, memory: TrainerMemory[Any], compute: Compute, *, restored: bool = False
    ) -> None:
        """`restored`: the script has got the state of a former trainer; it stays until the script says what
        to keep, or ends.
        """
        self.make_state: MakeState | None = None
        self.given = False
        self.evaluations = 0
        self._point: NDArray[Any] | None = None  # (P,), the trained weights of a script that names no others
        self._is_end = False  # these are what the script ends with, and no point that it has evaluated
        self._withheld = restored
        self._broken_off = False
        self._client = client
        self._memory = memory
        self._compute = compute
        self._met = 0  # the last wish that a send has met
        self._next_unasked = 0.0

    def begin(self, make_state: MakeState) -> None:
        """Give what this makes from now on; TrainerError, and nothing has changed, if it cannot be kept."""
        state = make_state()
        pack_state(state)
        check_trained(state, self._compute.weights.size)
        self.make_state, self._withheld = make_state, False

    def note_point(self, point: Any, *, is_end: bool = False) -> None:
        """Keep a copy of a point, (P,), as what the script has come to; `is_end`: it was not evaluated."""
        flat = np.asarray(point).reshape(-1)
        if self._point is None or self._point.dtype != flat.dtype:
            self._point = flat.copy()
        else:
            np.copyto(self._point, flat)
        self._is_end = is_end

    def break_off(self) -> None:
        """Give no state of the script any more, as it may be in the middle of anything: the daemon keeps the
        last one.
        """
        self._broken_off = self._withheld or self.make_state is not None

    def give_if_asked(self) -> None:
        """Give the state, between two steps, if the daemon wants it."""
        memory, client = self._memory, self._client
        if not memory.state_wanted:
            return
        client.settle()  # of an interrupted one, the daemon may be using the copy
        if not memory.state_wanted:
            return
        descriptors: list[int] = []
        try:
            self._compute.keep_residual()
            descriptors += self.pack()
            request = StateRequest(steps=memory.steps, outbox=memory.published_bytes)
            client.exchange(request, descriptors)
            self.given = True
        except UsageError as error:
            raise TrainerError(str(error)) from None
        finally:
            close_descriptors(descriptors)

    def give_now_and_then(self) -> None:
        """Give the script's part unasked, for 1 % of the time at most. Without that an export, or a trainer
        that comes after one that was killed, would have it as it was when the daemon asked last.
        """
        began = time.monotonic()
        if began < self._next_unasked:
            return
        self.give_unasked()
        self._next_unasked = began + max(UNASKED_S, UNASKED_SHARE * (time.monotonic() - began))

    def give_unasked(self) -> None:
        """Give the script's part, between two steps."""
        if descriptors := self.pack():
            try:
                memory = self._memory
                request = StateRequest(steps=memory.steps, outbox=memory.published_bytes, unasked=True)
                self._client.exchange(request, descriptors)
            except UsageError as error:
                raise TrainerError(str(error)) from None
            finally:
                close_descriptors(descriptors)

    def give_if_asked_long_ago(self) -> None:
        """Give the state, at the begin of a send, if the daemon wanted it already at the last one.

        So a script that calls `receive` is asked there, where nothing of its next mini-batch is done yet, and
        one that does not is asked all the same.
        """
        met, self._met = self._met, self._memory.state_wanted
        if met == self._met:
            self.give_if_asked()

    def pack(self, *, ends: bool = False) -> list[int]:
        """Return the script's part as a memfd, now the caller's; nothing if it has none. `ends`: for the last
        time.

        TrainerError if it holds what cannot be kept. The last point is left out if there is no room for it.
        """
        if self._broken_off or (self._withheld and not ends):
            return []
        state: Any = {} if self.make_state is None else self.make_state()
        if not isinstance(state, Mapping):
            pack_state(state)
        check_trained(state, self._compute.weights.size)
        added: dict[str, Any] = {}
        if self.evaluations and TRAINED in state:
            added = {ENDED: f"{OWN} after evaluation {self.evaluations}"}
        elif self._point is not None:
            what = "parameters after" if self._is_end else "the point of"
            added = {EVALUATED: self._point, ENDED: f"{what} evaluation {self.evaluations}"}
        if self.make_state is None and not added:
            return []
        try:
            pieces = pack_state({**state, **added})
        except TrainerError:
            if not added:
                raise
            pieces = pack_state(state)
        return [sealed_copy("p2psgd-script", *pieces)]
