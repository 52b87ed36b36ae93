"""What a node's trainer goes on from: given to the first one, and asked of each for the host to keep."""

from __future__ import annotations

from p2psgd.errors import TrainerError
from p2psgd.ipc.host import ControlHost, TrainerState
from p2psgd.ipc.kept_script import KeptScript
from p2psgd.ipc.port import TrainerPort
from p2psgd.ipc.requests import StateRequest


class StateHandover:
    """`wanted`: the host has asked and has no answer yet. `restored` is what an earlier daemon wrote down,
    until a trainer's memory has been made of it. A `port` of None: there is no such memory yet.
    """

    def __init__(self, host: ControlHost, script: KeptScript) -> None:
        self.wanted = False
        self.restored = TrainerState(None, None, 0)
        self._host = host
        self._script = script

    def restore(self, state: TrainerState) -> None:
        """The first trainer is to go on from here; TrainerError if the script's part is no state."""
        self._script.put(state.script)
        self.restored = state

    def want(self, port: TrainerPort | None) -> None:
        """Ask the trainer for its state; the host gets it, and at once if no trainer is attached."""
        self.wanted = True
        if port is None or port.attachment is None:
            self.give(port)
        else:
            port.attachment.want_state()

    def give(self, port: TrainerPort | None) -> None:
        """Give the host the state of a trainer that is not there: nobody changes it now."""
        self.wanted = False
        state = self.restored
        if port is not None:
            residual, mini_batches = port.lend_residual(), port.mini_batches
            state = TrainerState(residual, self._script.state, mini_batches, port.residual_age)
        self._host.trainer_state(state)

    def take(self, port: TrainerPort, request: StateRequest, descriptors: list[int]) -> None:
        """The trainer's answer, once all updates before it have been taken from its outbox.

        TrainerError, with nothing changed, if this is no state.
        """
        attachment = port.attachment
        assert attachment is not None
        if attachment.taken_bytes != request.outbox:
            raise TrainerError(f"no update of the outbox ends at {request.outbox}, where the state begins")
        if not attachment.mini_batches <= request.mini_batches <= attachment.progress():
            raise TrainerError(
                f"a state after mini-batch {request.mini_batches}, of a trainer that has come to"
                f" {attachment.progress()}"
            )
        self._script.take(descriptors)
        self.wanted = False
        attachment.accept_state()
        self._host.trainer_state(
            TrainerState(
                port.kept_residual,
                self._script.state,
                request.mini_batches,
                port.age_after(request.mini_batches),
            )
        )
