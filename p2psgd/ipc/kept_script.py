"""What the training script last gave to be kept: for the host, and for the trainer that comes next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from p2psgd.errors import TrainerError
from p2psgd.ipc.script_state import ScriptState, pack_state, unpack_state
from p2psgd.ipc.segments import map_sealed, sealed_copy


class KeptScript:
    """The state, None if there is none, and the memfd that holds it; arrays in it are views of that."""

    def __init__(self) -> None:
        self.state: ScriptState | None = None
        self._memory = -1

    @property
    def descriptors(self) -> list[int]:
        """The memfd, for a trainer; none if nothing is kept."""
        return [] if self._memory < 0 else [self._memory]

    def take(self, descriptors: list[int]) -> None:
        """Keep what a trainer handed over: one memfd, or none at all for no state.

        TrainerError, with nothing changed, if it is not exactly a state. The caller closes the descriptors.
        """
        if len(descriptors) > 1:
            raise TrainerError(f"a state comes with one descriptor, not with {len(descriptors)}")
        state = unpack_state(map_sealed(descriptors[0], "a script's state")) if descriptors else None
        memory = os.dup(descriptors[0]) if descriptors else -1
        self.close()
        self.state, self._memory = state, memory

    def put(self, state: Mapping[str, Any] | None) -> None:
        """Keep what an earlier daemon of this node has written down; TrainerError if it is no state."""
        if state is None:
            self.take([])
            return
        memory = sealed_copy("p2psgd-script", *pack_state(state))
        try:
            self.take([memory])
        finally:
            os.close(memory)

    def close(self) -> None:
        """Close the memfd; views of it live on."""
        descriptors, self._memory = self.descriptors, -1
        for descriptor in descriptors:
            os.close(descriptor)
